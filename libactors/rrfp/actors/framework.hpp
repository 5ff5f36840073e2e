/// What programs that run jobs need of the framework that their ranks compute with: libtorch
/// (torch_framework.hpp), or none, for emulated devices alone.
#pragma once

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>

#include <rrfp/actors/session.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/membership/launch_environment.hpp>

namespace rrfp::actors {

/// The model and the data of a job, opened. Thread-safe.
class job_model {
 public:
  job_model() = default;
  job_model(const job_model&) = delete;
  job_model& operator=(const job_model&) = delete;
  virtual ~job_model() = default;

  /// Completes the setup of the job: its ranks train the model on the data, with the evaluations of
  /// the job. Error: names the key of the job.
  virtual status complete(session_setup& setup) const = 0;
  /// Equal on nodes that read the same data.
  virtual std::string fingerprint() const = 0;
  /// Counts of samples read and left out, in one line; may be empty.
  virtual std::string report() const = 0;
  /// Decodes the images in the order of the run until `end`, and reports how many of them, and
  /// `limit`. Empty for data that was checked completely when it was opened. Error: the error that
  /// would end the run.
  virtual result<std::string> decode_images(std::chrono::duration<double> limit,
                                            std::chrono::steady_clock::time_point end) const = 0;
};

/// The key-value store of torchrun's agent, through which the nodes find the port of node 0.
class agent_store {
 public:
  agent_store() = default;
  agent_store(const agent_store&) = delete;
  agent_store& operator=(const agent_store&) = delete;
  virtual ~agent_store() = default;

  /// Tells the port of node 0 to the others. Called on node 0.
  virtual status publish(std::uint16_t port) = 0;
  /// Waits until node 0 has published its port. Called on the others. Error: node_lost after the
  /// limit; interrupted.
  virtual result<std::uint16_t> find(const std::stop_token& stop) = 0;
};

class framework {
 public:
  framework() = default;
  framework(const framework&) = delete;
  framework& operator=(const framework&) = delete;
  virtual ~framework() = default;

  /// Jobs that follow each other with the same data share it. Null for an emulated device, which
  /// reads no data. To be called before this process computes anything: the libraries that it loads
  /// for device.kind serve all runs. Error: names the key and what this machine lacks for it, or
  /// the path and what is wrong with it or its contents.
  virtual result<std::shared_ptr<const job_model>> open(const job::job& j) = 0;
  /// The vector instructions with which the framework computes on this node. With different ones
  /// the bits differ, and the copies of weights on several nodes drift apart.
  virtual std::string vector_instructions() const = 0;
  /// One rendezvous; the nodes of a job must connect in the same order. `place.port` is the
  /// agent's. Error: node_lost if the agent does not answer within `limit`.
  virtual result<std::unique_ptr<agent_store>> connect_store(
      const launch_place& place, std::chrono::milliseconds limit) const = 0;
};

/// For programs without a framework: every job must have an emulated device.
std::unique_ptr<framework> make_no_framework();

}  // namespace rrfp::actors
