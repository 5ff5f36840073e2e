/// Joins the processes of a job as its nodes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/actors/framework.hpp>
#include <rrfp/base/codec.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/membership/launch_environment.hpp>
#include <rrfp/membership/membership.hpp>

namespace rrfp::actors {

/// A time that a job gives in seconds.
constexpr std::chrono::milliseconds to_ms(double seconds) {
  return std::chrono::milliseconds{static_cast<std::int64_t>(seconds * 1e3)};
}

/// Checks that this process may open as many file descriptors as one of `nodes` nodes needs, mostly
/// sockets. Error: the limit, the number expected, and what to raise.
status check_descriptors(std::uint32_t nodes);

/// Checks that this process can start the threads that one of `nodes` nodes of the job needs, by
/// starting as many. Libraries that cannot start one crash. Error: which could not be started, the
/// limit, and what to raise.
status check_threads(const job::job& j, std::uint32_t nodes);

/// Blocks until all nodes have joined with the same job; [transport] may differ. `m`: what follows
/// neither from the job nor from the place: inherited descriptors, the version and the description
/// of the node, `standing`, `stop`, and callbacks other than `on_listening`. An error is
/// node_lost if other nodes did not join in time, interrupted, or bad_input: a wrong place, key or
/// job, other vector instructions than node 0's, or check_descriptors().
result<std::unique_ptr<membership>> join_job(const job::job& j, const launch_place& place,
                                             const framework& framework, membership_options m);

/// How long a node may wait for others that read many gigabytes of weights or a checkpoint.
inline constexpr std::chrono::minutes reading_time_max{30};

/// A contribution or an answer in an agreement: its bytes, or, with the kind of a failure, its
/// message.
struct outcome {
  std::optional<error_kind> failure;
  std::string text;
};
auto fields(auto f, outcome& x) { return f(x.failure, x.text); }

template <class T>
std::string outcome_bytes(result<T> r) {
  return encoded(r ? outcome{std::nullopt, encoded(*std::move(r))}
                   : outcome{r.failure().kind, r.message()});
}

template <class T>
result<T> read_outcome(std::string_view bytes) {
  auto read = decoded<outcome>(bytes);
  if (read && read->failure && *read->failure <= error_kind::interrupted)
    return error{std::move(read->text), *read->failure};
  auto value = read && !read->failure ? decoded<T>(read->text) : std::nullopt;
  if (!value) return error{"protocol error: a node answered another round", error_kind::failed};
  return *std::move(value);
}

/// Why all nodes fail if the contribution of node `n` is this failure.
error failure_of_node(membership& members, std::size_t n, const error& why);

/// Exchanges whether each node succeeded (`mine`): all nodes continue or none does. Returns the
/// answer of node 0 to this node. The error is the same on all nodes: that of the first node that
/// failed, with its name, that of `answer`, or a node lost meanwhile.
///
/// Contributions and answers have fields() (base/codec.hpp). `answer` gets the contributions of all
/// nodes, a std::vector<Contribution> with an empty one for each absent node, and returns a
/// result<std::vector<Answer>>: one answer for each node, or one for all.
template <class Contribution, class Answer>
result<Answer> agree(membership& members, const result<Contribution>& mine, auto answer,
                     std::chrono::milliseconds limit = reading_time_max) {
  const auto told =
      members.exchange(outcome_bytes(mine), limit, [&](const std::vector<std::string>& all) {
        std::vector<Contribution> contributions(all.size());
        for (std::size_t n = 0; n < all.size(); ++n) {
          if (members.members()[n].is_absent) continue;
          auto one = read_outcome<Contribution>(all[n]);
          if (!one)
            return std::vector{outcome_bytes<Answer>(failure_of_node(members, n, one.failure()))};
          contributions[n] = *std::move(one);
        }
        auto made = answer(std::move(contributions));
        if (!made) return std::vector{outcome_bytes<Answer>(made.failure())};
        std::vector<std::string> answers;
        for (auto& one : *made) answers.push_back(outcome_bytes<Answer>(std::move(one)));
        return answers;
      });
  return told ? read_outcome<Answer>(*told) : told.failure();
}

/// agree() without contributions and answers.
status agree_on(membership& members, const status& mine,
                std::chrono::milliseconds limit = reading_time_max);

}  // namespace rrfp::actors
