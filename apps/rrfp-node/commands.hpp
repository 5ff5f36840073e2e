/// The commands of rrfp-node. Each returns the exit code of the program.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/actors/framework.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/membership/launch_environment.hpp>

#include "node_program.hpp"

namespace rrfp::apps {

struct command_options {
  const node_program* program = nullptr;
  std::string job;
  std::vector<std::string> settings;  ///< --set
  std::string json;                   ///< run: a file for the JSON lines
  std::string trace;                  ///< run: a file for the trace
  std::string metrics;                ///< run, join: HOST:PORT of /metrics; empty: not served
  std::string reports;                ///< run, join: a folder for hang reports
  std::uint32_t local_nodes = 1;      ///< run, check: node processes on this machine
  double decode_s = 60;               ///< check: time limit for decoding images
};

/// The framework that this program was built with.
std::unique_ptr<actors::framework> make_framework();

/// The job of the command; tells the user how it was read.
result<job::job> load(const command_options& options, bool tells_notes = true);

struct join_options {
  actors::launch_arguments place;  ///< the environment supplies what is not given
  int rendezvous_fd = -1;          ///< a listening socket, inherited from the launcher
  int key_fd = -1;                 ///< the key of the run, inherited from the launcher
  bool launched = false;           ///< started by the launcher, which reports for the nodes
};

struct export_options {
  std::string checkpoint;  ///< a checkpoint's folder, or a folder of checkpoints: the newest
  std::string out;
  /// The folder of model.pretrained, whose tokenizer and untrained weights are copied; may be
  /// empty.
  std::string base;
  std::string dtype = "float32";
  std::uint64_t shard_bytes_max = 5'000'000'000;
};

struct init_options {
  std::string file;
  std::string data = "text";      ///< text, images or pretrained
  std::vector<std::string> from;  ///< files and folders of training data
  std::string model;              ///< the folder of the pretrained model
  std::string program;            ///< argv[0], for the commands that it proposes
};

/// Trains the job, or each of its variants in turn, on this machine, and prints the result table.
int run_command(const command_options& options);
/// Trains the job as one of several nodes; every node runs this command.
int join_command(const command_options& options, const join_options& join);
/// Validates the job and prints what would run.
int check_command(const command_options& options);
/// Assembles the weights of a checkpoint and writes a model that transformers can load.
int export_command(const export_options& options);
/// Writes a commented job file as a starting point.
int init_command(const init_options& options);

}  // namespace rrfp::apps
