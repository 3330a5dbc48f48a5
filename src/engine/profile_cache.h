// Measured links and codecs, kept between runs.
#pragma once

#include <gradpress/status.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "comm/topology.h"
#include "engine/exchange.h"

namespace gradpress::engine {

/// What a profile is good for. Links are not part of it: a probe tells whether they are the same.
struct ProfileKey {
  std::string machine = {};
  std::string backend = {};
  comm::Topology topology = {};
  std::vector<std::string> codecs = {};

  std::string text() const;
};

/// This machine's name and number of cores.
std::string this_machine();

/// `folder` as in AutoOptions::cache. None: profiles are not kept.
std::optional<std::filesystem::path> profile_file(const std::string& folder, const ProfileKey& key);

/// Rank 0's profile of that key, on every rank; none: it has none that can be read.
/// Cost: two broadcasts. Errors: the group's.
Result<std::optional<Json>> shared_profile(Exchange& exchange,
                                           const std::optional<std::filesystem::path>& file,
                                           const ProfileKey& key);

/// Errors: kInvalidArgument when it cannot be written.
Status keep_profile(const std::filesystem::path& file, const ProfileKey& key, Json cluster);

}  // namespace gradpress::engine
