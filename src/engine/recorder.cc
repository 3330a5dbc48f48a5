#include "engine/recorder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/json.h"

namespace gradpress::engine {

namespace {

double us(Time time) { return std::chrono::duration<double, std::micro>(time).count(); }

double mean_of(std::span<const double> values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

double deviation_of(std::span<const double> values, double mean) {
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return values.empty() ? 0.0 : std::sqrt(squares / static_cast<double>(values.size()));
}

}  // namespace

void TraceRecorder::start(unsigned steps) {
  left_ = steps;
  in_step_ = false;
  ready_us_.clear();
  forward_us_.clear();
  now_us_.assign(tensors_, -1.0F);
}

void TraceRecorder::ready(std::size_t tensor, Time now, Time done) {
  if (left_ == 0) return;
  if (!in_step_) {
    in_step_ = true;
    first_ = now;
    inside_ = Time{0};
    std::ranges::fill(now_us_, -1.0F);
    if (last_end_ != Time{0}) forward_us_.push_back(us(now - last_end_));
  }
  now_us_[tensor] = static_cast<float>(us(now - first_ - inside_));
  inside_ += done - now;
}

void TraceRecorder::end_step(Time called, Time done) {
  last_end_ = done;
  if (left_ == 0 || !in_step_) return;
  const auto end = static_cast<float>(us(called - first_ - inside_));
  for (float& time : now_us_) {
    if (time < 0.0F) time = end;
  }
  ready_us_.insert(ready_us_.end(), now_us_.begin(), now_us_.end());
  in_step_ = false;
  --left_;
}

std::vector<float> TraceRecorder::mean_ready_us() const {
  const auto steps = static_cast<double>(std::max<std::size_t>(1, ready_us_.size() / tensors_));
  std::vector<double> sum(tensors_, 0.0);
  for (std::size_t i = 0; i < ready_us_.size(); ++i) sum[i % tensors_] += ready_us_[i];
  std::vector<float> mean(tensors_);
  std::ranges::transform(sum, mean.begin(),
                         [&](double value) { return static_cast<float>(value / steps); });
  return mean;
}

std::vector<float> TraceRecorder::median_ready_us() const {
  std::vector<float> medians(tensors_);
  std::vector<double> of_tensor(ready_us_.size() / tensors_);
  for (std::size_t tensor = 0; tensor < tensors_; ++tensor) {
    for (std::size_t step = 0; step < of_tensor.size(); ++step) {
      of_tensor[step] = ready_us_[step * tensors_ + tensor];
    }
    medians[tensor] = static_cast<float>(median_of(of_tensor));
  }
  return medians;
}

double TraceRecorder::median_forward_us() const { return median_of(forward_us_); }

double TraceRecorder::median_compute_us() const {
  if (ready_us_.empty() || forward_us_.empty()) return 0.0;
  const std::vector<float> ready = median_ready_us();
  return median_forward_us() + static_cast<double>(*std::ranges::max_element(ready));
}

RecordedTrace TraceRecorder::trace(std::span<const TensorSpec> tensors) const {
  RecordedTrace trace{.steps = static_cast<unsigned>(ready_us_.size() / tensors_),
                      .forward_us = mean_of(forward_us_)};
  const std::vector<float> mean = mean_ready_us();
  std::vector<std::size_t> order(tensors_);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t tensor) { return mean[tensor]; });
  std::vector<double> gaps(trace.steps);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t tensor = order[i];
    for (std::size_t step = 0; step < gaps.size(); ++step) {
      const float* row = ready_us_.data() + step * tensors_;
      gaps[step] = i == 0 ? 0.0 : static_cast<double>(row[tensor] - row[order[i - 1]]);
    }
    const double gap = mean_of(gaps);
    // Sorted by their means, so that a mean gap is never below zero but by rounding.
    trace.tensors.push_back({.name = tensors[tensor].name,
                             .shape = tensors[tensor].shape,
                             .ready_gap_us = std::max(0.0, gap),
                             .spread_us = deviation_of(gaps, gap)});
  }
  return trace;
}

}  // namespace gradpress::engine

namespace gradpress {

Status write_trace(const std::string& file, std::string_view model, const RecordedTrace& trace) {
  if (trace.steps == 0) {
    return Status::error(Code::kInvalidArgument, "trace for ", file,
                         ": no step was recorded: call record_trace() before the steps");
  }
  Json json = {{"format", "gradpress-trace-1"},
               {"model", model},
               {"source", "recorded over " + std::to_string(trace.steps) + " steps"},
               {"steps", trace.steps},
               {"forward_us", trace.forward_us},
               {"tensors", Json::array()}};
  for (const RecordedTrace::Tensor& tensor : trace.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"shape", tensor.shape.dims()},
                               {"elements", tensor.shape.elements()},
                               {"ready_gap_us", tensor.ready_gap_us},
                               {"spread_us", tensor.spread_us}});
  }
  return write_json(file, json);
}

}  // namespace gradpress
