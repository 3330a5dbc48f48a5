#include "spec/facts_json.h"

#include <string>
#include <utility>

#include "spec/facts.h"

namespace gradpress::codec {

namespace {

std::string_view feedback_of(const Traits& traits) {
  if (traits.needs_feedback) return "needed";
  return traits.supports_feedback ? "possible" : "none";
}

Json keys_of(const Spec& spec, const Facts& facts) {
  Json keys = Json::object();
  for (const Key& key : facts.keys) {
    const double value = key.get(spec);
    if (value == key.get(Spec{})) continue;
    if (key.words.empty()) {
      keys[std::string(key.name)] = value;
    } else {
      keys[std::string(key.name)] = key.words[static_cast<std::size_t>(value)];
    }
  }
  return keys;
}

}  // namespace

Json to_json(const Spec& spec) {
  const Facts& facts = facts_of(spec);
  const Traits traits = traits_of(spec);
  Json json = {{"name", facts.name},
               {"text", to_text(spec)},
               {"family", to_text(facts.family)},
               {"value", nullptr},
               {"keys", keys_of(spec, facts)},
               {"reducible", traits.reducible},
               {"payload_type", type_name(traits.payload_type)},
               {"fixed_size", traits.fixed_size},
               {"combine", traits.combine == Combine::kVote ? "vote" : "mean"},
               {"rounds", traits.rounds},
               {"cycle", facts.cycle},
               {"draws", to_text(facts.draws)},
               {"feedback", feedback_of(traits)}};
  if (const auto value = value_of(spec)) json["value"] = *value;
  return json;
}

Json list_of_codecs() {
  Json list = Json::array();
  for (const Facts& facts : all_facts()) {
    Json json = to_json(parse_spec(facts.example).value());
    json.erase("text");
    json["usage"] = facts.usage;
    json["example"] = facts.example;
    json["about"] = facts.about;
    json["value"] = to_text(facts.value);
    json["keys"] = Json::array();
    for (const Key& key : facts.keys) {
      Json one = {{"name", key.name}};
      if (key.words.empty()) {
        one.update({{"least", key.least}, {"most", key.most}, {"whole", key.whole}});
      } else {
        for (const std::string_view word : key.words) one["words"].push_back(word);
      }
      json["keys"].push_back(std::move(one));
    }
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace gradpress::codec
