#include "engine/hand_over.h"

#include <algorithm>
#include <vector>

#include "kernels/vector.h"

namespace gradpress::engine {

namespace {

/// A tensor where it comes from and where it goes to.
struct Move {
  sync::Message& from;
  std::uint32_t from_member;
  sync::Message& to;
  std::uint32_t to_member;
};

bool is_zero(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return value == 0.0F; });
}

/// Signum's mean gradient is a worker's own in every option: it stays where it is.
Status move_means(const Move& move, std::span<float> values) {
  if (move.from.has_momentum(move.from_member) || move.to.has_momentum(move.to_member)) return {};
  move.from.copy_momentum(move.from_member, values);
  if (is_zero(values)) return {};
  return move.to.load_momentum(move.to_member, values);
}

Status move_plainly(const Move& move, std::span<float> values) {
  if (Status status = move_means(move, values); !status) return status;
  move.from.take_residual(move.from_member, values);
  if (is_zero(values)) return {};
  return move.to.give_residual(move.to_member, values);
}

class MomentumMover {
 public:
  MomentumMover(Velocity& velocity, Exchange& exchange)
      : velocity_(velocity), exchange_(exchange) {}

  Status move(const Move& move, std::uint32_t tensor, std::span<float> values) {
    Status status = move_means(move, values);
    if (status) status = move_residual(move, tensor, values);
    if (status) status = move_momentum(move, tensor, values);
    return status;
  }

 private:
  Status move_residual(const Move& move, std::uint32_t tensor, std::span<float> values) {
    if (!move.from.has_momentum(move.from_member)) {
      move.from.take_residual(move.from_member, values);
      if (is_zero(values)) return {};
      return move.to.has_momentum(move.to_member) ? move.to.add_to_next(move.to_member, values)
                                                  : move.to.give_residual(move.to_member, values);
    }
    if (move.from.take_next(move.from_member, values)) {
      if (Status status = move.to.add_to_next(move.to_member, values); !status) return status;
    }
    move.from.take_residual(move.from_member, values);
    if (move.to.has_momentum(move.to_member) && move.to.keeps_residual(move.to_member)) {
      return is_zero(values) ? Status() : move.to.give_residual(move.to_member, values);
    }
    if (Status status = exchange_.to_mean(values); !status) return status;
    if (!is_zero(values)) velocity_.carry(tensor, values);
    return {};
  }

  Status move_momentum(const Move& move, std::uint32_t tensor, std::span<float> values) {
    const bool before = move.from.has_momentum(move.from_member);
    const bool after = move.to.has_momentum(move.to_member);
    if (!before && !after) return {};
    if (before) {
      move.from.copy_momentum(move.from_member, values);
      if (after && move.from.summed_workers() == 1 && move.to.summed_workers() == 1) {
        return move.to.load_momentum(move.to_member, values);
      }
      if (Status status = exchange_.to_mean(values); !status) return status;
    } else if (const auto known = velocity_.momentum(tensor); !known.empty()) {
      std::ranges::copy(known, values.begin());
    } else {
      return {};
    }
    if (!after) {
      velocity_.set(tensor, values);
      return {};
    }
    velocity_.drop(tensor);
    kernels::scale(values, static_cast<float>(move.to.summed_workers()));
    return move.to.load_momentum(move.to_member, values);
  }

  Velocity& velocity_;
  Exchange& exchange_;
};

}  // namespace

namespace {

template <class MoveOne>
Status move_all(Runtime& from, Runtime& to, const MoveOne& move_one) {
  std::vector<float> values;
  for (std::uint32_t tensor = 0; tensor < from.tensors(); ++tensor) {
    const auto [old_message, old_member] = from.place_of(tensor);
    const auto [new_message, new_member] = to.place_of(tensor);
    const Move move{.from = from.message(old_message),
                    .from_member = old_member,
                    .to = to.message(new_message),
                    .to_member = new_member};
    values.resize(move.from.spec().members[old_member].shape.elements());
    if (Status status = move_one(move, tensor, values); !status) return status;
  }
  return {};
}

}  // namespace

Status hand_over_residuals(Runtime& from, Runtime& to) {
  return move_all(from, to,
                  [](const Move& move, std::uint32_t /*tensor*/, std::span<float> values) {
                    return move_plainly(move, values);
                  });
}

Status hand_over(Runtime& from, Runtime& to, Velocity* velocity, Exchange& exchange) {
  if (velocity == nullptr) return hand_over_residuals(from, to);
  return move_all(from, to, [&](const Move& move, std::uint32_t tensor, std::span<float> values) {
    return MomentumMover(*velocity, exchange).move(move, tensor, values);
  });
}

}  // namespace gradpress::engine
