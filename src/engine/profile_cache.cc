#include "engine/profile_cache.h"

#include <unistd.h>

#include <array>
#include <cstdint>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "codec/frame.h"

namespace gradpress::engine {

namespace {

constexpr std::string_view kKeyField = "profile_key";

std::string hexadecimal(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4U) text[i] = "0123456789abcdef"[value & 0xFU];
  return text;
}

/// A profile that cannot be read, or is another's with the same hash, is none.
std::string read_profile(const std::filesystem::path& file, const ProfileKey& key) {
  const auto json = read_json(file);
  if (!json || !json->is_object() || json->value(kKeyField, "") != key.text()) return {};
  return json->dump();
}

}  // namespace

std::string ProfileKey::text() const {
  std::string text = machine + "; " + backend + "; " + std::to_string(topology.machines) + " x " +
                     std::to_string(topology.workers_per_machine);
  for (const std::string& codec : codecs) text += "; " + codec;
  return text;
}

std::string this_machine() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) name[0] = '?';
  return std::string(name.data()) + ", " + std::to_string(std::thread::hardware_concurrency()) +
         " cores";
}

std::optional<std::filesystem::path> profile_file(const std::string& folder,
                                                  const ProfileKey& key) {
  if (folder.empty() || folder == "-") return std::nullopt;
  const std::string text = key.text();
  return std::filesystem::path(folder) /
         ("profile-" + hexadecimal(codec::hash_of(std::as_bytes(std::span<const char>(text)))) +
          ".json");
}

Result<std::optional<Json>> shared_profile(Exchange& exchange,
                                           const std::optional<std::filesystem::path>& file,
                                           const ProfileKey& key) {
  const auto text = exchange.from_first(file ? read_profile(*file, key) : std::string());
  if (!text) return tl::unexpected(text.error());
  if (text->empty()) return std::nullopt;
  return Json::parse(*text, nullptr, false);
}

Status keep_profile(const std::filesystem::path& file, const ProfileKey& key, Json cluster) {
  std::error_code failed;
  std::filesystem::create_directories(file.parent_path(), failed);
  cluster[std::string(kKeyField)] = key.text();
  return write_json(file, cluster);
}

}  // namespace gradpress::engine
