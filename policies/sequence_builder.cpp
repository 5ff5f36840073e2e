#include <rrfp/policies/sequence_builder.hpp>

#include <algorithm>

namespace rrfp::policies {

void sequence_builder::forward(chunk_id chunk) {
  emit(task_kind::forward, forwards_[chunk.value()]++, chunk);
}

void sequence_builder::backward(chunk_id chunk) {
  const auto mb = backwards_[chunk.value()]++;
  emit(task_kind::backward, mb, chunk);
  due_.push_back({task_kind::weight, microbatch_id{mb}, chunk});
}

void sequence_builder::backward_weight(chunk_id chunk) {
  emit(task_kind::backward_weight, backwards_[chunk.value()]++, chunk);
}

void sequence_builder::weight(chunk_id chunk) {
  const auto oldest = std::ranges::find(due_, chunk, &task::chunk);
  if (oldest == due_.end()) return;
  order_.push_back(*oldest);
  due_.erase(oldest);
}

void sequence_builder::weight() {
  if (!due_.empty()) weight(due_.front().chunk);
}

void sequence_builder::remaining_weights() {
  order_.insert(order_.end(), due_.begin(), due_.end());
  due_.clear();
}

}  // namespace rrfp::policies
