/// The commands of rrfp-node. Each returns the exit code of the program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rrfp::apps {

struct command_options {
  std::string job;
  std::vector<std::string> settings;  ///< --set
  std::string json;                   ///< run: a file for the JSON lines
  std::string trace;                  ///< run: a file for the trace
  std::string metrics;                ///< run, join: HOST:PORT to serve numbers on; empty: nowhere
  std::string reports;                ///< run, join: a folder for reports of who waits for what
  std::uint32_t local_nodes = 1;      ///< run, check: processes on this machine
  double look_s = 60;                 ///< check: time for images
};

/// Where a node stands; what is not given comes from the environment.
struct join_options {
  std::optional<std::uint32_t> nodes;
  std::optional<std::uint32_t> node_rank;
  std::optional<std::string> rendezvous;  ///< HOST:PORT
  std::optional<std::string> master_host;
  std::optional<std::uint16_t> master_port;
  int rendezvous_fd = -1;  ///< a socket that listens already, from the launcher
  bool launched = false;   ///< by the launcher, which speaks for the nodes
};

struct export_options {
  std::string checkpoint;  ///< its folder, or one of several: the newest
  std::string out;
  /// The model that was trained on: what it has beside the trained weights goes along. Maybe empty.
  std::string base;
  std::string dtype = "float32";
  std::uint64_t shard_bytes_max = 5'000'000'000;
};

struct init_options {
  std::string file;
  std::string data = "text";      ///< text, images or pretrained
  std::vector<std::string> from;  ///< files and folders to train on
  std::string model;              ///< pretrained: its folder
  std::string program;            ///< as it was called, for the commands that it proposes
};

/// Trains the job, or each of its variants in turn, on this machine, and prints the table.
int run_command(const command_options& options);
/// The same as one node of several, each started like this.
int join_command(const command_options& options, const join_options& join);
/// Validates the job and prints what would run.
int check_command(const command_options& options);
/// Joins the weights of a checkpoint and writes them as a model that transformers loads.
int export_command(const export_options& options);
/// Writes a commented job file to begin with.
int init_command(const init_options& options);

}  // namespace rrfp::apps
