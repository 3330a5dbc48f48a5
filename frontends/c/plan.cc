// The planner.
#include <gradpress/plan.h>

#include "guard.h"
#include "options.h"
#include "plan/plan_file.h"

namespace gradpress::c_api {

namespace {

Result<PlanRequest> plan_request(const char* text) {
  if (Status status = check_given(text, "request"); !status) return tl::unexpected(status);
  const auto json = parse_json(text, "request", Json::object());
  if (!json) return tl::unexpected(json.error());
  const plan::Field object(*json, "request");
  PlanRequest request;
  OptionReader reader(object);
  reader.read("trace_file", request.trace_file);
  reader.read("cluster_file", request.cluster_file);
  reader.read("codecs", request.codecs);
  reader.read("strategy", request.strategy);
  reader.read("extended_tree", request.extended_tree);
  reader.read("fusion", request.fusion);
  if (Status status = reader.finish(); !status) return tl::unexpected(status);
  return request;
}

}  // namespace

}  // namespace gradpress::c_api

using namespace gradpress::c_api;  // the function below is its outside

extern "C" {

gradpress_code gradpress_plan_make(const char* request, gradpress_text** plan,
                                   gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_given(plan, "plan"); !status) return status;
    const auto wanted = plan_request(request);
    if (!wanted) return wanted.error();
    const auto made = gradpress::make_plan(*wanted);
    if (!made) return made.error();
    *plan = text_of(gradpress::plan::to_json(*made));
    return {};
  });
}
}
