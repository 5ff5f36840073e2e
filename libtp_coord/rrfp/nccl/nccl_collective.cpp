#include <rrfp/nccl/nccl_collective.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "communicator.hpp"

namespace rrfp::nccl {

namespace {

using tp_coord::bytes_of;
using tp_coord::collective;
using tp_coord::element;
using tp_coord::operation;

/// Up to this size, every rank gathers all buffers and sums them itself.
constexpr std::size_t gather_bytes_max = 64 * 1024;

ncclDataType_t type_of(element e) {
  switch (e) {
    case element::float32: return ncclFloat32;
    case element::float64: return ncclFloat64;
    case element::int64: return ncclInt64;
  }
  return ncclFloat32;
}

/// The NCCL id as numbers, for the broadcast.
using id_words = std::array<std::int64_t, sizeof(ncclUniqueId) / sizeof(std::int64_t)>;
static_assert(sizeof(id_words) == sizeof(ncclUniqueId));

class nccl_collective final : public collective {
 public:
  nccl_collective(std::shared_ptr<collective> control, std::unique_ptr<stream_host> host,
                  const tp_coord::collective_options& options)
      : collective(control->rank(), control->size()),
        control_(std::move(control)),
        host_(std::move(host)),
        options_(options),
        comm_(std::make_shared<communicator>(rank(), size(), host_->device(), options.limit)) {
    watch(comm_);
  }

  bool on_device() const override { return true; }
  status health() const override { return comm_->health(); }

  void abort(const std::string& why) override {
    control_->abort(why);
    comm_->request_abort(why);
  }

 private:
  status run(const request& r) override {
    if (auto ready = connect(); !ready) return ready;
    if (options_.compare_calls && r.print.op != operation::barrier)  // a barrier compares by itself
      if (auto same = compare(r.print); !same) return same;
    const auto type = type_of(r.print.type);
    const auto count = r.print.count;
    const auto stream = host_->stream();
    // Two summands have only one order.
    const bool in_rank_order = r.print.op == operation::sum && options_.in_rank_order &&
                               size() > 2 && r.print.type != element::int64;
    switch (r.print.op) {
      case operation::sum:
      case operation::max:
        if (in_rank_order) return sum_in_rank_order(r);
        return comm_->call("ncclAllReduce", [&](ncclComm_t c) {
          return ncclAllReduce(r.out, r.out, count, type,
                               r.print.op == operation::sum ? ncclSum : ncclMax, c, stream);
        });
      case operation::gather:
        return comm_->call("ncclAllGather", [&](ncclComm_t c) {
          return ncclAllGather(r.in, r.out, count, type, c, stream);
        });
      case operation::broadcast:
        return comm_->call("ncclBroadcast", [&](ncclComm_t c) {
          return ncclBroadcast(r.out, r.out, count, type, static_cast<int>(r.print.root.value()), c,
                               stream);
        });
      case operation::barrier: return control_->barrier();
    }
    return success();
  }

  /// Compares the ranks' fingerprints of this call.
  status compare(const tp_coord::fingerprint& print) {
    const auto mine = tp_coord::encode(print);
    std::vector<tp_coord::encoded_fingerprint> all(size());
    constexpr auto words = sizeof mine / sizeof(std::int64_t);
    static_assert(words * sizeof(std::int64_t) == sizeof mine);
    if (auto gathered = control_->all_gather(mine.data(), all.data(), words, element::int64);
        !gathered)
      return gathered;
    std::vector<tp_coord::fingerprint> prints;
    for (const auto& bytes : all) {
      const auto decoded = tp_coord::decode(bytes);
      if (!decoded) return error{"a rank sent an invalid fingerprint of its call"};
      prints.push_back(*decoded);
    }
    const auto differs = tp_coord::disagreement(prints);
    if (!differs) return success();
    abort(*differs);
    return error{*differs};
  }

  /// Creates the communicator in the first call.
  status connect() {
    if (comm_->is_made()) return success();
    if (auto healthy = comm_->health(); !healthy) return healthy;
    ncclUniqueId id{};
    id_words words{};
    if (rank() == rank_id{0}) {
      if (const auto code = ncclGetUniqueId(&id); code != ncclSuccess) {
        const auto why = std::string{"ncclGetUniqueId: "} + ncclGetErrorString(code);
        abort(why);
        return error{why};
      }
      std::memcpy(words.data(), &id, sizeof id);
    }
    if (auto sent = control_->broadcast(words.data(), words.size(), element::int64, rank_id{0});
        !sent)
      return sent;
    std::memcpy(&id, words.data(), sizeof id);
    if (const auto code = cudaSetDevice(host_->device()); code != cudaSuccess)
      return error{"cudaSetDevice on device " + std::to_string(host_->device()) + ": " +
                   cudaGetErrorString(code)};
    return comm_->init(id);
  }

  status sum_in_rank_order(const request& r) {
    const auto width = bytes_of(r.print.type);
    const auto count = r.print.count;
    if (count * width * size() <= gather_bytes_max) return gather_and_sum(r);
    const auto type = type_of(r.print.type);
    const auto stream = host_->stream();
    const auto part = (count + size() - 1) / size();
    const auto begin_of = [&](std::uint32_t k) { return std::min(count, part * k); };
    const auto length_of = [&](std::uint32_t k) { return begin_of(k + 1) - begin_of(k); };
    const auto me = rank().value();
    const auto mine = length_of(me);
    auto parts = host_->scratch(std::max<std::size_t>(mine * size() * width, 1));
    if (!parts) return parts.failure();
    auto* const collected = static_cast<std::byte*>(parts->get());
    // Includes a send to itself, which puts the own part in its place among the others.
    auto scattered = comm_->call("ncclSend and ncclRecv of parts", [&](ncclComm_t c) {
      return exchange(
          [&](std::uint32_t k) {
            return std::pair{transfer{r.out + begin_of(k) * width, length_of(k)},
                             transfer{collected + k * mine * width, mine}};
          },
          type, c, stream);
    });
    if (!scattered) return scattered;
    auto* const sum = r.out + begin_of(me) * width;
    if (mine > 0)
      if (auto added = host_->sum_in_order(sum, collected, mine, size(), r.print.type); !added)
        return added;
    return comm_->call("ncclSend and ncclRecv of sums", [&](ncclComm_t c) {
      return exchange(
          [&](std::uint32_t k) {
            // The own sum is already in place.
            return std::pair{transfer{sum, k == me ? 0 : mine},
                             transfer{r.out + begin_of(k) * width, k == me ? 0 : length_of(k)}};
          },
          type, c, stream);
    });
  }

  status gather_and_sum(const request& r) {
    const auto count = r.print.count;
    auto all = host_->scratch(std::max<std::size_t>(count * bytes_of(r.print.type) * size(), 1));
    if (!all) return all.failure();
    auto gathered = comm_->call("ncclAllGather", [&](ncclComm_t c) {
      return ncclAllGather(r.out, all->get(), count, type_of(r.print.type), c, host_->stream());
    });
    if (!gathered) return gathered;
    return host_->sum_in_order(r.out, all->get(), count, size(), r.print.type);
  }

  struct transfer {
    std::byte* data;
    std::size_t count;
  };

  /// `transfers_of(k)` returns what to send to rank k and what to receive from it.
  template <class TransfersOf>
  ncclResult_t exchange(TransfersOf transfers_of, ncclDataType_t type, ncclComm_t c,
                        cudaStream_t stream) const {
    auto code = ncclGroupStart();
    const auto note = [&](ncclResult_t s) {
      if (code == ncclSuccess || code == ncclInProgress) code = s;
    };
    for (std::uint32_t k = 0; k < size(); ++k) {
      const auto [to, from] = transfers_of(k);
      const auto peer = static_cast<int>(k);
      if (to.count > 0) note(ncclSend(to.data, to.count, type, peer, c, stream));
      if (from.count > 0) note(ncclRecv(from.data, from.count, type, peer, c, stream));
    }
    note(ncclGroupEnd());
    return code;
  }

  const std::shared_ptr<collective> control_;
  const std::unique_ptr<stream_host> host_;
  const tp_coord::collective_options options_;
  const std::shared_ptr<communicator> comm_;
};

}  // namespace

std::unique_ptr<tp_coord::collective> make_nccl_collective(
    std::shared_ptr<tp_coord::collective> control, std::unique_ptr<stream_host> host,
    const tp_coord::collective_options& options) {
  return std::make_unique<nccl_collective>(std::move(control), std::move(host), options);
}

}  // namespace rrfp::nccl
