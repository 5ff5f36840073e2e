#include <rrfp/workload/packer.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <rrfp/base/check.hpp>
#include <rrfp/simulate/keyed_random.hpp>

namespace rrfp::workload {

namespace {

/// Keeps these draws independent of all others.
constexpr std::uint64_t order_salt = 0x7061636b;
constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

/// Replaces the indices into `of` by what they stand for.
void look_up(std::vector<std::uint32_t>& indices, const std::vector<std::uint32_t>& of) {
  for (auto& i : indices) i = of[i];
}

std::uint64_t tokens_of(std::span<const sample_work> samples) {
  std::uint64_t tokens = 0;
  for (const auto& s : samples) tokens += s.tokens;
  return tokens;
}

std::vector<sample_work> chosen_from(std::span<const sample_work> samples,
                                     const std::vector<std::uint32_t>& indices) {
  std::vector<sample_work> chosen;
  chosen.reserve(indices.size());
  for (const auto i : indices) chosen.push_back(samples[i]);
  return chosen;
}

std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  return a != 0 && b > unlimited / a ? unlimited : a * b;
}

/// First the replicas, then the microbatches of each.
std::optional<packed_replicas> pack_by_replica(std::span<const sample_work> samples,
                                               std::uint32_t replicas, std::uint32_t microbatches,
                                               std::uint64_t tokens_max) {
  const auto few = static_cast<std::uint32_t>(samples.size() / replicas);
  const auto of_replicas =
      divide(samples, replicas, {times(tokens_max, microbatches), std::min(microbatches, few)});
  if (!of_replicas) return std::nullopt;
  packed_replicas packed;
  for (const auto& of_replica : *of_replicas) {
    const auto own = chosen_from(samples, of_replica);
    packed.emplace_back();
    if (own.empty()) continue;
    auto parts = divide(own, std::min(microbatches, static_cast<std::uint32_t>(own.size())),
                        {tokens_max, 1});
    if (!parts) return std::nullopt;
    for (auto& part : *parts) look_up(part, of_replica);
    packed.back() = std::move(*parts);
  }
  return packed;
}

/// First the microbatches, then the replica of each: this fits more often.
std::optional<packed_replicas> pack_by_microbatch(std::span<const sample_work> samples,
                                                  std::uint32_t replicas,
                                                  std::uint32_t microbatches,
                                                  std::uint64_t tokens_max) {
  const auto count = static_cast<std::uint32_t>(
      std::min(times(replicas, microbatches), std::uint64_t{samples.size()}));
  auto parts = divide(samples, count, {tokens_max, 1});
  if (!parts) return std::nullopt;
  std::vector<sample_work> whole;  // a microbatch counts as one token, for the limit of a replica
  for (const auto& part : *parts) {
    whole.push_back({1, 0});
    for (const auto i : part) whole.back().work += samples[i].work;
  }
  const auto of_replicas = divide(whole, replicas, {microbatches, count / replicas});
  if (!of_replicas) return std::nullopt;
  packed_replicas packed(replicas);
  for (std::uint32_t r = 0; r < replicas; ++r)
    for (const auto i : (*of_replicas)[r]) packed[r].push_back(std::move((*parts)[i]));
  return packed;
}

status check_samples(std::span<const sample_work> samples, std::uint64_t max_tokens) {
  if (samples.empty()) return error{"samples: expected at least one, got none"};
  if (samples.size() >= std::numeric_limits<std::uint32_t>::max())
    return error{"samples: expected fewer than 2^32 - 1, got " + std::to_string(samples.size())};
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto fail = [&](const std::string& what) -> status {
      return error{"samples[" + std::to_string(i) + "]: expected " + what};
    };
    const auto& s = samples[i];
    if (s.tokens == 0 || s.tokens > tokens_of_sample_max)
      return fail("1 to " + std::to_string(tokens_of_sample_max) + " tokens, got " +
                  std::to_string(s.tokens));
    if (max_tokens != 0 && s.tokens > max_tokens)
      return fail("at most max_tokens = " + std::to_string(max_tokens) + " tokens, got " +
                  std::to_string(s.tokens));
    if (!std::isfinite(s.work) || s.work < 0)
      return error{"cost of samples[" + std::to_string(i) +
                   "]: expected a finite number >= 0, got " + std::to_string(s.work)};
  }
  return success();
}

status check_options(const pack_options& o, std::size_t samples) {
  if (o.replicas == 0) return error{"replicas: expected an integer >= 1, got 0"};
  if (o.batch_size != 0 && o.batch_tokens != 0)
    return error{"batch_tokens: expected None with batch_size, got " +
                 std::to_string(o.batch_tokens)};
  if (o.delay != 0 && o.batch_size == 0 && o.batch_tokens == 0)
    return error{
        "delay: expected 0 without batch_size and batch_tokens, because all samples are "
        "one step, got " +
        std::to_string(o.delay)};
  if (o.drop_last && o.batch_size == 0)
    return error{"drop_last: expected False without batch_size, got True"};
  if (o.drop_last && o.batch_size > samples)
    return error{"batch_size: expected at most the " + std::to_string(samples) +
                 " samples with drop_last, got " + std::to_string(o.batch_size)};
  if (times(o.replicas, std::max(o.microbatches, 1U)) > microbatches_of_step_max)
    return error{"microbatches: expected replicas * microbatches <= " +
                 std::to_string(microbatches_of_step_max) + ", got " + std::to_string(o.replicas) +
                 " * " + std::to_string(o.microbatches)};
  return success();
}

}  // namespace

std::optional<packed_replicas> pack_step(std::span<const sample_work> samples,
                                         std::uint32_t replicas, std::uint32_t microbatches,
                                         std::uint64_t max_tokens) {
  RRFP_CHECK(replicas > 0 && microbatches > 0, "a step has microbatches");
  const auto tokens_max = max_tokens == 0 ? unlimited : max_tokens;
  if (tokens_of(samples) > times(tokens_max, times(replicas, microbatches))) return std::nullopt;
  auto packed = pack_by_replica(samples, replicas, microbatches, tokens_max);
  if (!packed) packed = pack_by_microbatch(samples, replicas, microbatches, tokens_max);
  if (packed)
    for (auto& parts : *packed) std::ranges::sort(parts);
  return packed;
}

std::uint32_t microbatches_needed(std::span<const sample_work> samples, std::uint32_t replicas,
                                  std::uint64_t max_tokens) {
  return max_tokens == 0 ? 1 : (parts_needed(samples, max_tokens) + replicas - 1) / replicas;
}

result<packer> packer::make(std::vector<sample_work> samples, const pack_options& options) {
  if (auto valid = check_samples(samples, options.max_tokens); !valid) return valid.failure();
  if (auto valid = check_options(options, samples.size()); !valid) return valid.failure();
  return packer{std::move(samples), options};
}

packer::packer(std::vector<sample_work> samples, const pack_options& options)
    : samples_(std::move(samples)), options_(options) {
  double work = 0;
  for (const auto& s : samples_) work += s.work;
  const auto tokens = static_cast<double>(tokens_of(samples_));
  // The share of the epoch that a step takes.
  const auto of_step =
      options_.batch_tokens != 0 ? static_cast<double>(options_.batch_tokens) / tokens
      : options_.batch_size != 0
          ? static_cast<double>(options_.batch_size) / static_cast<double>(samples_.size())
          : 1.0;
  std::uint64_t each = options_.microbatches;
  if (each == 0) {
    const auto replica_tokens = std::min(of_step, 1.0) * tokens / options_.replicas;
    each = options_.max_tokens == 0
               ? 1
               : static_cast<std::uint64_t>(
                     std::ceil(replica_tokens / static_cast<double>(options_.max_tokens)));
  }
  microbatches_ = std::max<std::uint64_t>(each, 1) * options_.replicas;
  share_ = work * of_step / static_cast<double>(microbatches_);
  released_max_ =
      options_.batch_size == 0 ? microbatches_ : std::min(microbatches_, options_.batch_size);
  order_epoch();
}

void packer::order_epoch() {
  order_.resize(samples_.size());
  std::iota(order_.begin(), order_.end(), 0U);
  if (!options_.shuffle) return;
  simulate::keyed_random random{options_.seed, order_salt, position_.epoch};
  for (std::uint64_t i = order_.size(); i > 1; --i) {
    // The upper half of the product is uniform over [0, i), but for i / 2^32.
    const auto chosen = ((random.bits() >> 32) * i) >> 32;
    std::swap(order_[i - 1], order_[chosen]);
  }
}

bool packer::is_full(const taken_samples& taken, std::uint64_t tokens, std::uint32_t sample) const {
  if (options_.batch_size != 0) return taken.samples.size() >= options_.batch_size;
  if (options_.batch_tokens == 0 || taken.samples.empty()) return false;
  return tokens + samples_[sample].tokens > options_.batch_tokens;
}

packer::taken_samples packer::take(std::size_t samples_max) const {
  taken_samples taken{{}, {}, position_};
  auto& after = taken.after;
  ++after.step;
  std::uint64_t tokens = 0;
  const auto add = [&](std::uint32_t sample) {
    taken.samples.push_back(sample);
    tokens += samples_[sample].tokens;
  };
  std::size_t released = 0;
  const auto release = [&] {
    const auto& [sample, since] = after.held[released++];
    add(sample);
    if (since < position_.step) taken.delays.emplace_back(sample, position_.step - since);
  };
  // One outlier for each microbatch. As at most released_max_ * delay are held, none waits longer.
  const bool is_due =
      !after.held.empty() && after.held.front().since + options_.delay <= position_.step;
  if (is_due || after.held.size() >= released_max_)
    while (released < std::min<std::size_t>(released_max_, after.held.size())) release();
  while (taken.samples.size() < samples_max) {
    if (after.next < order_.size()) {
      const auto sample = order_[after.next];
      if (is_full(taken, tokens, sample)) break;
      ++after.next;
      if (samples_[sample].work > share_ &&
          after.held.size() - released < times(released_max_, options_.delay))
        after.held.push_back({sample, position_.step});
      else
        add(sample);
    } else {
      if (released == after.held.size() || is_full(taken, tokens, after.held[released].sample))
        break;
      release();
    }
  }
  after.held.erase(after.held.begin(), after.held.begin() + static_cast<std::ptrdiff_t>(released));
  return taken;
}

std::optional<packed_replicas> packer::pack(const std::vector<std::uint32_t>& samples) const {
  const auto work = chosen_from(samples_, samples);
  const auto replicas = options_.replicas;
  const auto few = static_cast<std::uint32_t>(samples.size() / replicas);
  auto microbatches = std::min(options_.microbatches, std::max(few, 1U));
  if (options_.microbatches == 0)
    microbatches = microbatches_needed(work, replicas, options_.max_tokens);
  auto step = pack_step(work, replicas, microbatches, options_.max_tokens);
  // With fewer samples than microbatches some replicas may have one microbatch less.
  if (!step && microbatches < options_.microbatches)
    step = pack_step(work, replicas, microbatches + 1, options_.max_tokens);
  if (step)
    for (auto& parts : *step)
      for (auto& part : parts) look_up(part, samples);
  return step;
}

bool packer::is_over(const pack_position& p) const {
  const auto left = samples_.size() - p.next + p.held.size();
  return left == 0 || (options_.drop_last && left < options_.batch_size);
}

packed_step packer::next() {
  auto taken = take(samples_.size());
  auto packed = pack(taken.samples);
  if (!packed) {
    // The most samples that fit: one in each microbatch always does.
    auto fits = std::min<std::size_t>(microbatches_, taken.samples.size());
    auto above = taken.samples.size();
    while (fits + 1 < above) {
      const auto middle = fits + (above - fits) / 2;
      const std::vector some(taken.samples.begin(),
                             taken.samples.begin() + static_cast<std::ptrdiff_t>(middle));
      const auto parts = parts_needed(chosen_from(samples_, some), options_.max_tokens);
      (parts <= microbatches_ ? fits : above) = middle;
    }
    taken = take(fits);
    packed = pack(taken.samples);
  }
  RRFP_CHECK(packed, "the samples fit");
  position_ = std::move(taken.after);
  if (is_over(position_)) {
    position_ = {.epoch = position_.epoch + 1};
    order_epoch();
  }
  for (auto& parts : *packed) {
    for (auto& part : parts) std::ranges::sort(part);
    std::ranges::sort(parts);
  }
  return packed_step{std::move(*packed), std::move(taken.delays)};
}

status packer::go_to(pack_position position) {
  const auto count = samples_.size();
  const auto fail = [](const std::string& what) -> status {
    return error{"state: expected " + what};
  };
  if (position.next > count || is_over(position))
    return fail("a place in an epoch of " + std::to_string(count) + " samples, got " +
                std::to_string(position.next));
  for (const auto& h : position.held) {
    if (h.sample >= count)
      return fail("waiting samples below " + std::to_string(count) + ", got " +
                  std::to_string(h.sample));
    if (h.since >= position.step)
      return fail("samples that wait since a step before " + std::to_string(position.step) +
                  ", got " + std::to_string(h.since));
  }
  position_ = std::move(position);
  order_epoch();
  return success();
}

}  // namespace rrfp::workload
