#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <rrfp/torch/batch_source.hpp>
#include <rrfp/torch/parallel_operators.hpp>
#include <rrfp/torch/tensors.hpp>

#include "deferred.hpp"

namespace rrfp::compute {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using shared_group = std::shared_ptr<rank_group>;

/// The graph may outlive the module that made it, so it holds the group.
struct group_capsule final : torch::CustomClassHolder {
  explicit group_capsule(shared_group g) : group(std::move(g)) {}
  shared_group group;
};

void save_group(AutogradContext* ctx, const shared_group& group) {
  ctx->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<group_capsule>(group));
}

rank_group& group_of(AutogradContext* ctx) {
  const auto capsule = ctx->saved_data["group"].toCapsule();
  return *static_cast<group_capsule*>(capsule.get())->group;
}

/// In place. bfloat16 is summed in float32 for precision.
void sum_over(rank_group& group, at::Tensor& t) {
  if (t.scalar_type() != at::kBFloat16) return all_reduce_sum(group, t);
  auto wide = t.to(at::kFloat);
  all_reduce_sum(group, wide);
  t.copy_(wide);
}

struct copying : torch::autograd::Function<copying> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const shared_group& group) {
    save_group(ctx, group);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    // Other operators may use the gradient as well; then sum into a copy.
    auto g = is_sole_owner(gradients[0]) ? gradients[0]
                                         : gradients[0].clone(at::MemoryFormat::Contiguous);
    sum_over(group_of(ctx), g);
    return {g, {}};
  }
};

struct reducing : torch::autograd::Function<reducing> {
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& x,
                            const shared_group& group) {
    auto sum = x.clone(at::MemoryFormat::Contiguous);
    sum_over(*group, sum);
    return sum;
  }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& gradients) {
    return {gradients[0], {}};
  }
};

struct deferred_linear : torch::autograd::Function<deferred_linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*anchor*/,
                            const at::Tensor& weight, const std::optional<at::Tensor>& given_bias,
                            weight_stash* stash, const shared_group& group) {
    const auto bias = given_bias.value_or(at::Tensor{});
    save(ctx, stash, weight, bias);
    // The detached weight shares the version counter, so autograd reports a weight that changes
    // between F and B.
    ctx->save_for_backward({x, weight.detach()});
    if (!is_parallel(group)) return at::linear(x, cast_like(weight, x), cast_like(bias, x));
    auto y = at::linear(x, cast_like(weight, x));
    sum_over(*group, y);
    if (bias.defined()) y.add_(cast_like(bias, y));
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    auto of_inputs = backward_of_linear(ctx, gradients[0]);
    of_inputs.resize(of_inputs.size() + 2);
    return of_inputs;
  }
};

/// Maps ids to rows of this rank; ids of other ranks map to row 0 and are marked as outside.
struct local_rows {
  at::Tensor outside;  ///< bool
  at::Tensor rows;     ///< int64

  local_rows(const at::Tensor& ids, std::int64_t count, const rank_group& group)
      : rows(ids - count * std::int64_t{group.rank()}) {
    outside = rows.lt(0).logical_or_(rows.ge(count));
    rows.masked_fill_(outside, 0);
  }
};

/// Without this check, an id beyond the vocabulary would belong to no rank and go unnoticed.
void check_ids(const char* name, const at::Tensor& ids, std::int64_t vocabulary) {
  if (ids.numel() == 0) return;
  const auto [least, most] = at::aminmax(ids);
  TORCH_CHECK_INDEX(least.item<std::int64_t>() >= 0 && most.item<std::int64_t>() < vocabulary, name,
                    " out of range: ", least.item<std::int64_t>(), " to ",
                    most.item<std::int64_t>(), " with a vocabulary of ", vocabulary);
}

struct deferred_embedding : torch::autograd::Function<deferred_embedding> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& indices,
                            const at::Tensor& /*anchor*/, const at::Tensor& weight,
                            weight_stash* stash, const shared_group& group) {
    save(ctx, stash, weight);
    if (!is_parallel(group)) {
      ctx->save_for_backward({indices});
      return at::embedding(weight, indices);
    }
    const local_rows local(indices, weight.size(0), *group);
    ctx->save_for_backward({local.rows, local.outside});
    auto y = at::embedding(weight, local.rows);
    y.masked_fill_(local.outside.unsqueeze(-1), 0);
    all_reduce_sum(*group, y);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    auto rows = saved[0], gy = gradients[0];
    if (saved.size() > 1) {
      // Drop the rows of other ranks: they would take memory until W and add zeros to row 0.
      const auto mine = saved[1].logical_not().flatten().nonzero().flatten();
      rows = rows.flatten().index_select(0, mine);
      gy = gy.reshape({-1, gy.size(-1)}).index_select(0, mine);
    }
    auto of_weight = stash_of(ctx)->embedding(ctx->saved_data["weight"].toInt(), rows, gy);
    return {{}, {}, std::move(of_weight), {}, {}};
  }
};

struct split_cross_entropy : torch::autograd::Function<split_cross_entropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& targets, const shared_group& group) {
    const auto ignored = targets.eq(ignored_target);
    const local_rows local(targets, logits.size(1), *group);
    const auto column = local.rows.unsqueeze(1);

    auto largest = logits.amax(1);
    all_reduce_max(*group, largest);
    auto shifted = logits - largest.unsqueeze(1);
    // One all-reduce for both sums: the exponentials, and the target's logit, which one rank has.
    auto sums = at::empty({2, logits.size(0)}, logits.options());
    sums[1].copy_(shifted.gather(1, column).squeeze(1).masked_fill_(local.outside, 0));
    shifted.exp_();
    sums[0].copy_(shifted.sum(1));
    all_reduce_sum(*group, sums);
    const auto losses = sums[0].log().sub_(sums[1]).masked_fill_(ignored, 0);

    shifted.div_(sums[0].unsqueeze(1));
    ctx->save_for_backward({shifted, column, local.outside, ignored});
    return losses.sum();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& probabilities = saved[0];
    const auto each = gradients[0].expand({probabilities.size(0)}).masked_fill(saved[3], 0);
    auto g = probabilities * each.unsqueeze(1);
    g.scatter_add_(1, saved[1], each.masked_fill(saved[2], 0).neg_().unsqueeze(1));
    return {g, {}, {}};
  }
};

}  // namespace

at::Tensor copy_to_group(const at::Tensor& x, const shared_group& group) {
  return is_parallel(group) ? copying::apply(x, group) : x;
}

at::Tensor reduce_from_group(const at::Tensor& x, const shared_group& group) {
  return is_parallel(group) ? reducing::apply(x, group) : x;
}

at::Tensor row_parallel_linear(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, weight_stash* stash,
                               const shared_group& group) {
  if (stash != nullptr && is_deferrable(weight) && is_deferrable(bias))
    return deferred_linear::apply(x, stash->anchor(), weight, if_defined(bias), stash, group);
  if (!is_parallel(group)) return at::linear(x, cast_like(weight, x), cast_like(bias, x));
  const auto sum = reduce_from_group(at::linear(x, cast_like(weight, x)), group);
  return bias.defined() ? sum + cast_like(bias, sum) : sum;
}

at::Tensor parallel_embedding(const at::Tensor& indices, const at::Tensor& weight,
                              weight_stash* stash, const shared_group& group) {
  if (is_parallel(group)) check_ids("token ids", indices, weight.size(0) * group->size());
  if (stash != nullptr && is_deferrable(weight))
    return deferred_embedding::apply(indices, stash->anchor(), weight, stash, group);
  if (!is_parallel(group)) return at::embedding(weight, indices);
  const local_rows local(indices, weight.size(0), *group);
  const auto y = at::embedding(weight, local.rows).masked_fill(local.outside.unsqueeze(-1), 0);
  return reduce_from_group(y, group);
}

at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                  const shared_group& group) {
  if (!is_parallel(group)) {
    return at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, ignored_target);
  }
  check_ids("targets", targets.masked_select(targets.ne(ignored_target)),
            logits.size(1) * group->size());
  return split_cross_entropy::apply(logits, targets, group);
}

}  // namespace rrfp::compute
