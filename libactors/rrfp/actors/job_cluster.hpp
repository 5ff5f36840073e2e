/// Joins the processes of a job as its nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/actors/framework.hpp>
#include <rrfp/base/codec.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/membership/launch_environment.hpp>
#include <rrfp/membership/membership.hpp>

namespace rrfp::actors {

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

/// What node 0 answers if all nodes have succeeded: one text for each node, or one for all. Gets
/// what each has contributed, by node.
using answering =
    std::function<result<std::vector<std::string>>(const std::vector<std::string>& all)>;

/// Exchanges whether each node succeeded (`mine`): all nodes continue or none does. Returns the
/// answer of node 0 to this node. The error is the same on all nodes: that of the first node that
/// failed, with its name, that of `answer`, or a node lost meanwhile.
result<std::string> agree(membership& members, const result<std::string>& mine,
                          const answering& answer,
                          std::chrono::milliseconds limit = reading_time_max);

/// agree() with contributions and answers of types that have fields() (base/codec.hpp). `answer`
/// gets the contributions of all nodes, a std::vector<Contribution> with an empty one for each
/// absent node, and returns a result<std::vector<Answer>>.
template <class Contribution, class Answer>
result<Answer> agree(membership& members, const result<Contribution>& mine, auto answer,
                     std::chrono::milliseconds limit = reading_time_max) {
  const auto told = agree(
      members, mine ? result<std::string>{encoded(*mine)} : mine.failure(),
      [&](const std::vector<std::string>& all) -> result<std::vector<std::string>> {
        std::vector<Contribution> contributions;
        for (const auto& bytes : all) {
          if (bytes.empty()) {  // of an absent node
            contributions.emplace_back();
            continue;
          }
          auto contribution = decoded<Contribution>(bytes);
          if (!contribution)
            return error{"protocol error: a node's contribution is invalid", error_kind::failed};
          contributions.push_back(*std::move(contribution));
        }
        auto made = answer(std::move(contributions));
        if (!made) return made.failure();
        std::vector<std::string> answers;
        for (auto& one : *made) answers.push_back(encoded(std::move(one)));
        return answers;
      },
      limit);
  if (!told) return told.failure();
  auto read = decoded<Answer>(*told);
  if (!read) return error{"protocol error: the answer of node 0 is invalid", error_kind::failed};
  return *std::move(read);
}

/// agree() without contributions and answers.
status agree_on(membership& members, const status& mine,
                std::chrono::milliseconds limit = reading_time_max);

}  // namespace rrfp::actors
