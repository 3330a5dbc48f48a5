#include "models.h"

#include <array>

namespace gradpress::trainer {

namespace {

struct Known {
  std::string_view name;
  bool text;
  bool recurrent;
};
constexpr std::array kModels = {
    Known{"mlp", false, false},      Known{"lenet", false, false},
    Known{"resnet20", false, false}, Known{"vgg11", false, false},
    Known{"lstm-lm", true, true},    Known{"transformer-lm", true, false},
};

/// Null when there is none of that name.
const Known* find_model(std::string_view name) {
  for (const Known& known : kModels) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string_view> model_names() {
  std::vector<std::string_view> names;
  names.reserve(kModels.size());
  for (const Known& model : kModels) names.push_back(model.name);
  return names;
}

bool is_recurrent(std::string_view model) {
  const Known* const known = find_model(model);
  return known != nullptr && known->recurrent;
}

Result<std::shared_ptr<Model>> make_model(const ModelSettings& settings, const SampleShape& shape) {
  const Known* const known = find_model(settings.name);
  if (known == nullptr) {
    std::string names;
    for (const Known& model : kModels) {
      names.append(names.empty() ? "" : ", ").append(model.name);
    }
    return fail(Code::kInvalidArgument, "--model \"", settings.name, "\": wanted one of ", names);
  }
  if (known->text != shape.is_text()) {
    return fail(Code::kInvalidArgument, "--model ", settings.name, " learns ",
                known->text ? "text: give --data text:FILE"
                            : "images: give --data fashion-mnist, cifar10:FOLDER or synthetic");
  }
  if (settings.name == "transformer-lm") {
    const std::int64_t hidden = settings.hidden == 0 ? 128 : settings.hidden;
    const std::int64_t heads = settings.heads == 0 ? 4 : settings.heads;
    if (hidden % heads != 0) {
      return fail(Code::kInvalidArgument, "--hidden ", hidden, " is no multiple of --heads ",
                  heads);
    }
  }
  return known->text ? make_language_model(settings, shape) : make_image_model(settings, shape);
}

}  // namespace gradpress::trainer
