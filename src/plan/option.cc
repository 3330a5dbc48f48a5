#include "plan/option.h"

#include <algorithm>
#include <vector>

#include "plan/grammar.h"

namespace gradpress::plan {

namespace {

constexpr std::array<std::string_view, 2> kPlaceNames = {"device", "host"};
constexpr std::array<std::string_view, kCollectives> kCollectiveNames = {
    "allreduce", "reduce-scatter", "reduce", "allgather", "broadcast", "alltoall", "gather"};
constexpr std::array<std::string_view, kPhases> kPhaseNames = {"flat", "intra1", "inter", "intra2"};

template <class Names>
std::string joined(const Names& names) {
  std::string text;
  for (const std::string_view name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

template <class Enum, class Names>
Result<Enum> parse_word(std::string_view text, std::string_view what, const Names& names) {
  const auto found = std::ranges::find(names, text);
  if (found == names.end()) {
    return fail(Code::kInvalidArgument, "unknown ", what, " \"", text, "\"; known are ",
                joined(names));
  }
  return static_cast<Enum>(found - names.begin());
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// One action as written: step and encoded are the grammar's to add.
Result<Action> parse_action(std::string_view text) {
  const std::size_t at = text.find('@');
  if (at == std::string_view::npos) {
    return fail(Code::kInvalidArgument,
                "wanted Comp@PLACE, Decomp@PLACE or COLLECTIVE@PHASE, got \"", text, "\"");
  }
  const std::string_view what = text.substr(0, at);
  const std::string_view where = text.substr(at + 1);
  Action action;
  if (what == "Comp" || what == "Decomp") {
    action.kind = what == "Comp" ? ActionKind::kComp : ActionKind::kDecomp;
    const auto place = parse_place(where);
    if (!place) return tl::unexpected(place.error());
    action.place = *place;
    return action;
  }
  action.kind = ActionKind::kComm;
  const auto collective = parse_collective(what);
  if (!collective) return tl::unexpected(collective.error());
  const auto phase = parse_word<Phase>(where, "phase", kPhaseNames);
  if (!phase) return tl::unexpected(phase.error());
  action.collective = *collective;
  action.phase = *phase;
  return action;
}

bool same_words(const Action& a, const Action& b) {
  if (a.kind != b.kind) return false;
  if (a.kind != ActionKind::kComm) return a.place == b.place;
  return a.collective == b.collective && a.phase == b.phase;
}

/// Recursive descent over the productions, with backtracking: paths are at most 12 actions long and
/// symbols have at most four productions.
class Matcher {
 public:
  explicit Matcher(std::span<const Action> words) : words_(words) {}

  bool match(Symbol symbol, PathState state, std::size_t position) {
    if (symbol == Symbol::kEnd) {
      if (position == words_.size()) return true;
      note(position, "the end");
      return false;
    }
    for (const Production& production : productions()) {
      if (production.from == symbol && match_terminals(production, 0, state, position)) return true;
    }
    return false;
  }

  std::span<const Action> path() const { return path_; }
  std::size_t furthest() const { return furthest_; }
  std::string wanted() const { return joined(wanted_); }

 private:
  bool match_terminals(const Production& production, std::size_t index, PathState state,
                       std::size_t position) {
    if (index == production.count) return match(production.to, state, position);
    const Terminal terminal = production.terminals[index];
    const Choices allowed = choices(terminal, phase_of(production.from, state), state);
    for (std::size_t i = 0; i < allowed.count; ++i) {
      const Action& action = allowed.actions[i];
      if (position >= words_.size() || !same_words(action, words_[position])) {
        note(position, to_text(action));
        continue;
      }
      path_.push_back(action);
      if (match_terminals(production, index + 1, advance(state, terminal, action), position + 1)) {
        return true;
      }
      path_.pop_back();
    }
    return false;
  }

  void note(std::size_t position, std::string_view wanted) {
    if (position > furthest_) wanted_.clear();
    furthest_ = std::max(furthest_, position);
    if (position == furthest_ && std::ranges::find(wanted_, wanted) == wanted_.end()) {
      wanted_.emplace_back(wanted);
    }
  }

  std::span<const Action> words_;
  std::vector<Action> path_;
  std::size_t furthest_ = 0;
  std::vector<std::string> wanted_;
};

}  // namespace

Option::Option(std::span<const Action> actions)
    : count_(static_cast<std::uint8_t>(std::min(actions.size(), kMaxActions))) {
  std::ranges::copy(actions.first(count_), actions_.begin());
}

unsigned Option::encodes() const {
  return static_cast<unsigned>(std::ranges::count(actions(), ActionKind::kComp, &Action::kind));
}

bool Option::is_flat() const {
  return std::ranges::none_of(actions(), [](const Action& action) {
    return action.kind == ActionKind::kComm && action.phase != Phase::kFlat;
  });
}

Option Option::moved_to(Place place) const {
  Option moved = *this;
  for (Action& action : moved.actions_) {
    if (action.kind != ActionKind::kComm) action.place = place;
  }
  return moved;
}

bool operator==(const Option& a, const Option& b) {
  return std::ranges::equal(a.actions(), b.actions());
}

std::string_view to_text(Place place) { return kPlaceNames[static_cast<std::size_t>(place)]; }
std::string_view to_text(Collective collective) {
  return kCollectiveNames[static_cast<std::size_t>(collective)];
}
std::string_view to_text(Phase phase) { return kPhaseNames[static_cast<std::size_t>(phase)]; }

std::string to_text(const Action& action) {
  std::string text;
  if (action.kind == ActionKind::kComm) {
    text.append(to_text(action.collective)).append("@").append(to_text(action.phase));
  } else {
    text.append(action.kind == ActionKind::kComp ? "Comp@" : "Decomp@");
    text.append(to_text(action.place));
  }
  return text;
}

std::string to_text(const Option& option) {
  std::string text;
  for (const Action& action : option.actions()) {
    if (!text.empty()) text += " > ";
    text += to_text(action);
  }
  return text;
}

Result<Place> parse_place(std::string_view text) {
  return parse_word<Place>(text, "place", kPlaceNames);
}

Result<Collective> parse_collective(std::string_view text) {
  return parse_word<Collective>(text, "collective", kCollectiveNames);
}

Result<Option> parse_option(std::string_view text) {
  std::vector<Action> words;
  for (std::string_view rest = text;;) {
    const std::size_t end = rest.find('>');
    const auto word = parse_action(trimmed(rest.substr(0, end)));
    if (!word) {
      return fail(Code::kInvalidArgument, "option \"", text, "\", action ", words.size() + 1, ": ",
                  word.error().message());
    }
    words.push_back(*word);
    if (end == std::string_view::npos) break;
    rest = rest.substr(end + 1);
  }
  Matcher matcher(words);
  for (const Symbol start :
       {Symbol::kFlat, Symbol::kHier, Symbol::kRoundsFlat, Symbol::kRoundsHier}) {
    if (matcher.match(start, PathState{}, 0)) return Option(matcher.path());
  }
  const std::size_t at = matcher.furthest();
  return fail(Code::kInvalidArgument, "option \"", text, "\", action ", at + 1, ": the tree has ",
              matcher.wanted(), " here, got ",
              at < words.size() ? to_text(words[at]) : std::string("the end"));
}

}  // namespace gradpress::plan
