#include "hosted_parts.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include <rrfp/actors/checkpoint_tensors.hpp>
#include <rrfp/core/check_policy.hpp>
#include <rrfp/core/sequence.hpp>
#include <rrfp/device/caller_queue.hpp>
#include <rrfp/device/collective_group.hpp>
#include <rrfp/device/compute_thread.hpp>
#include <rrfp/device/emulated_compute.hpp>

namespace rrfp::actors {

namespace {

/// In restored_: whether a rank has the parameter.
constexpr char has_place = '1', has_none = '0';

/// The stage that holds the other side of a tied parameter of `stage`, or `stage` itself.
stage_id partner_of(stage_id stage, const std::map<stage_id, compute::tie>& sides) {
  const auto mine = sides.find(stage);
  if (mine == sides.end() || mine->second == compute::tie::none) return stage;
  for (const auto& [other, side] : sides)
    if (other != stage && side != compute::tie::none) return other;
  return stage;
}

std::shared_ptr<compute::rank_compute> make_emulated(const session_setup& setup,
                                                     const rank_address& at) {
  emulated_model model{setup.emulated->message_bytes, setup.emulated->tokens, at.replica, {}};
  if (setup.slot_bytes)
    model.slot_bytes = [slot_bytes = setup.slot_bytes, stage = at.stage](
                           step_id step, replica_id of, microbatch_id mb) {
      return slot_bytes(step, of, stage, mb);
    };
  return std::make_shared<emulated_compute>(setup.shape, at.stage, model);
}

/// The time limit of collectives: longer than hang_timeout_s, so that a hang ends with a report of
/// who waits for whom.
std::chrono::milliseconds limit_of(const session_setup& setup) {
  constexpr std::int64_t forever_ms = 7LL * 24 * 3600 * 1000;
  constexpr std::int64_t reporting_ms = 5000;
  const auto ms = static_cast<std::int64_t>(setup.hang_timeout_s * 1e3);
  return std::chrono::milliseconds{ms > 0 ? ms + reporting_ms : forever_ms};
}

}  // namespace

hosted_parts::hosted_parts(const session_setup& setup, const cluster* in_cluster)
    : setup_(setup), cluster_(in_cluster), groups_(limit_of(setup)) {}

status hosted_parts::make() {
  if (setup_.resume) {
    auto opened = open_tensors(*setup_.resume);
    if (!opened) return opened.failure();
    saved_ = *std::move(opened);
    if (setup_.names_parameters) note_saved_parameters();
  }
  if (setup_.open_devices) {
    auto opened = setup_.open_devices(setup_, request());
    if (!opened) return opened.failure();
    with_memory_ = std::move(*opened);
  }
  std::map<std::pair<std::uint32_t, std::uint32_t>, members> of_replicas;  // by stage and rank
  for (std::uint32_t d = 0; d < setup_.replicas; ++d)
    for (std::uint32_t s = 0; s < setup_.shape.stages; ++s) {
      const replica_id replica{d};
      const stage_id stage{s};
      const auto of_stage = group_of(d * setup_.shape.stages + s, setup_.ranks,
                                     {stage, rank_id{0}, replica}, &rank_address::rank);
      for (std::uint32_t r = 0; r < setup_.ranks; ++r) {
        const rank_address address{stage, rank_id{r}, replica};
        if (d == 0)
          of_replicas[{s, r}] = group_of((setup_.replicas + r) * setup_.shape.stages + s,
                                         setup_.replicas, address, &rank_address::replica);
        if (!hosts(address)) continue;
        if (auto made = make_rank(address, {of_stage[r], of_replicas[{s, r}][d]}); !made)
          return made;
        if (r == 0)
          if (auto made = make_stage(address, parts_.ranks.back().compute->forwards_in_order());
              !made)
            return made;
      }
    }
  saved_.reset();
  return success();
}

status hosted_parts::check_forwards_in_order(const policy& hint, dispatch_mode mode) const {
  if (setup_.replicas > 1)
    return error{
        "its forward changes buffers, which would differ between replicas: expected "
        "pipeline.replicas = 1"};
  if (setup_.limits.front().run_ahead != 0)
    return error{"its forward changes buffers, so forwards run in order: expected no run-ahead"};
  if (mode != dispatch_mode::in_order) return success();
  std::vector<std::uint32_t> next(setup_.shape.chunks);
  for (const auto& t : obeyed_order(hint, setup_.shape))
    if (t.kind == task_kind::forward && t.mb.value() != next[t.chunk.value()]++)
      return error{fmt::format(
          "its forward changes buffers: expected a policy that runs the forwards in the order of "
          "the microbatches, got '{}' with {}",
          hint.name(), to_string(t))};
  return success();
}

status hosted_parts::make_stage(rank_address of, bool forwards_in_order) {
  const auto [stage, rank, replica] = of;
  const auto& rule = setup_.rule;
  const auto hint = rule.make_policy(setup_.shape, stage);
  if (hint == nullptr)
    return error{fmt::format("stage {}: make_policy returned null", stage.value())};
  try {
    if (auto fits = check_policy(*hint, setup_.shape, rule.mode); !fits)
      return within(fmt::format("stage {}", stage.value()), fits.failure());
    if (forwards_in_order)
      if (auto fits = check_forwards_in_order(*hint, rule.mode); !fits)
        return within(fmt::format("stage {}", stage.value()), fits.failure());
  } catch (const std::exception& e) {
    return error{fmt::format("stage {}: {}", stage.value(), e.what())};
  }
  auto& counters = counters_->stages.emplace_back();
  counters.replica = replica;
  counters.stage = stage;
  const stage_config config{.shape = setup_.shape,
                            .stage = stage,
                            .ranks = setup_.ranks,
                            .lookahead = setup_.lookahead,
                            .limit = setup_.limits[stage.value()],
                            .forwards_in_order = forwards_in_order};
  parts_.stages.push_back({replica, make_stage_core(config, rule), &counters});
  return success();
}

status hosted_parts::make_rank(rank_address address, rank_collectives groups) {
  const auto stage = address.stage;
  if (with_memory_) groups = with_memory_->join(address, groups);
  auto& counters = counters_->ranks.emplace_back();
  counters.at = address;
  const auto watch_of = [&](const auto& group) {
    return group ? std::make_shared<collective_watch>(counters) : nullptr;
  };
  const rank_watch watch{address, watch_of(groups.stage), watch_of(groups.replicas)};
  watches_.push_back(watch);
  auto group = groups.stage ? make_collective_group(groups.stage, watch.stage) : nullptr;
  auto compute = setup_.emulated
                     ? make_emulated(setup_, address)
                     : setup_.make_compute(setup_, {address, std::move(group), with_memory_.get()});
  if (!compute) return compute.failure();
  if (*compute == nullptr)
    return error{fmt::format("stage {}: make_compute returned null", stage.value())};
  if (auto restored = restore(**compute, stage); !restored) return restored;
  sides_[stage] = (*compute)->tied_side();
  devices_.push_back(
      make_device(fmt::format("compute {}.{}", stage.value(), address.rank.value()), address));
  computes_.emplace_back(address, *compute);
  parts_.ranks.push_back({address, stage, std::move(*compute), std::move(groups),
                          devices_.back().get(), &counters, watch.replicas});
  return success();
}

template <class Id>
hosted_parts::members hosted_parts::group_of(std::uint32_t id, std::uint32_t size,
                                             rank_address member, Id rank_address::*numbered) {
  std::vector<rank_address> all;
  std::vector<bool> here;
  for (std::uint32_t i = 0; i < size; ++i) {
    member.*numbered = Id{i};
    all.push_back(member);
    here.push_back(hosts(member));
  }
  return groups_.make(id, all, here);
}

status hosted_parts::restore(compute::rank_compute& compute, stage_id stage) {
  if (!saved_) return success();
  if (auto restored = compute.restore(*saved_); !restored)
    return within(fmt::format("{}: stage {}", setup_.resume->folder, stage.value()),
                  restored.failure());
  if (saved_parameters_.empty()) return success();
  for (const auto& name : compute.names()) {
    const auto at = std::lower_bound(saved_parameters_.begin(), saved_parameters_.end(), name);
    if (at != saved_parameters_.end() && *at == name)
      restored_[static_cast<std::size_t>(at - saved_parameters_.begin())] = has_place;
  }
  return success();
}

void hosted_parts::note_saved_parameters() {
  std::set<std::string> names;
  for (const auto& t : *saved_)
    if (!t.name.starts_with(compute::optimizer_prefix)) names.insert(t.name);
  saved_parameters_.assign(names.begin(), names.end());
  restored_.assign(saved_parameters_.size(), has_none);
}

status hosted_parts::check_restored(std::vector<std::string> all) const {
  auto& taken = all.front();
  for (const auto& of_node : all) {
    if (of_node.size() != taken.size())
      return error{setup_.resume->folder + ": nodes see different tensors in it"};
    for (std::size_t i = 0; i < taken.size(); ++i)
      if (of_node[i] == has_place) taken[i] = has_place;
  }
  const auto left = taken.find(has_none);
  if (left == std::string::npos) return success();
  return error{fmt::format("{}: tensor '{}': expected in the model, which has no such parameter",
                           setup_.resume->folder, saved_parameters_[left])};
}

node_parts hosted_parts::take(const std::map<stage_id, compute::tie>& sides) {
  for (auto& rank : parts_.ranks) rank.tied_with = partner_of(rank.address.stage, sides);
  return std::move(parts_);
}

std::vector<std::future<void>> hosted_parts::post_to_ranks(const rank_work& work) {
  std::vector<std::future<void>> all;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const auto& [address, compute] = computes_[i];
    const auto done = std::make_shared<std::promise<void>>();
    all.push_back(done->get_future());
    const std::lock_guard lock{posted_mutex_};
    posted_[address].emplace_back([work, done, address = address, compute = compute] {
      try {
        work(address, *compute);
        done->set_value();
      } catch (...) {
        done->set_exception(std::current_exception());
      }
    });
  }
  // Outside the lock: the thread that posts may run it.
  for (std::size_t i = 0; i < devices_.size(); ++i)
    devices_[i]->post([this, at = computes_[i].first] { run_posted(at); });
  return all;
}

void hosted_parts::run_posted(const rank_address& at) {
  std::unique_lock lock{posted_mutex_};
  const auto posted = std::exchange(posted_[at], {});
  lock.unlock();
  for (const auto& work : posted) work();
}

void hosted_parts::drop_posted() {
  const std::lock_guard lock{posted_mutex_};
  posted_.clear();
}

void hosted_parts::release_devices() {
  timer_.reset();
  devices_.clear();
  drop_posted();
  shared_devices_.clear();
  computes_.clear();
  with_memory_.reset();
}

bool hosted_parts::hosts(rank_address a) const {
  return !cluster_ ||
         cluster_->places.node_of(a.replica, a.stage, a.rank) == cluster_->members->node();
}

/// Nodes of the job that run on the same machine share its devices.
device_request hosted_parts::request() const {
  device_request r;
  r.hosted = setup_.all_ranks();
  std::erase_if(r.hosted, [this](const rank_address& a) { return !hosts(a); });
  r.limit = limit_of(setup_);
  if (!cluster_) return r;
  r.place = cluster_->start.machines.place;
  r.processes = cluster_->start.machines.neighbours;
  return r;
}

arrival_memory hosted_parts::memory_of_arrivals() const {
  return with_memory_ ? with_memory_->memory_of_arrivals() : arrival_memory{};
}

std::unique_ptr<device> hosted_parts::make_device(std::string name, rank_address address) {
  if (with_memory_) return with_memory_->make_device(std::move(name), address);
  if (setup_.caller) return setup_.caller->make_device();
  if (!setup_.emulated) return std::make_unique<compute_thread>(std::move(name), setup_.spin);
  // The ranks that came here because their node is absent share the device of the one that is here
  // in another replica.
  if (!timer_) timer_ = std::make_unique<timer_thread>("virtual devices");
  const auto [stage, rank, own] = address;
  bool is_shared = false;
  for (std::uint32_t d = 0; cluster_ && d < setup_.replicas; ++d)
    is_shared |= cluster_->places.share_device(own, replica_id{d}, stage, rank);
  if (!is_shared) return std::make_unique<virtual_device>(*timer_);
  auto& shared = shared_devices_[{stage, rank}];
  if (!shared) shared = std::make_unique<virtual_device>(*timer_);
  return shared->share();
}

}  // namespace rrfp::actors
