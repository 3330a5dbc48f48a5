#include "text.h"

#include <gradpress/version.h>

#include <memory>
#include <utility>

namespace gradpress::c_api {

gradpress_text* make_text(std::string bytes) {
  return std::make_unique<gradpress_text>(gradpress_text{std::move(bytes)}).release();
}

gradpress_text* make_text(std::span<const std::byte> bytes) {
  return make_text(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

gradpress_text* text_of(const Json& json) {
  return make_text(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace gradpress::c_api

extern "C" {

uint32_t gradpress_api_version() { return GRADPRESS_C_API_VERSION; }

const char* gradpress_version() {
  return gradpress::version().data();  // of a literal: ends with a zero
}

const char* gradpress_text_data(const gradpress_text* text) {
  return text == nullptr ? nullptr : text->bytes.c_str();
}

size_t gradpress_text_size(const gradpress_text* text) {
  return text == nullptr ? 0 : text->bytes.size();
}

void gradpress_text_free(gradpress_text* text) { const std::unique_ptr<gradpress_text> end(text); }
}
