#include <CLI/CLI.hpp>

#include <rrfp/base/printable.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/policies/registry.hpp>

#include "../common/checks.hpp"
#include "../common/console.hpp"
#include "../common/program.hpp"
#include "commands.hpp"
#include "node_program.hpp"

namespace rrfp::apps {

namespace {

int print_policies() {
  const auto print_row = [](std::string_view name, std::string_view kind,
                            std::string_view summary) {
    const auto text = wrapped(summary, std::string(27, ' '), 80);
    print("{:<17}{:<10}{}", name, kind, text.substr(27));
  };
  for (const auto& p : policies::registry().known())
    print_row(p.name, p.fixed ? "[fixed]" : "[rounds]", p.summary);
  print_row("table:FILE.csv", "[fixed]",
            "a schedule in the CSV format of torch.distributed.pipelining");
  print_row("lib:FILE.so", "[rounds]", "a policy of your own in a shared library");
  return exit_done;
}

void add_job(CLI::App& command, command_options& options) {
  command.add_option("job", options.job, "The job, a TOML file")->required();
  command
      .add_option("--set", options.settings, "Override a key: section.key=value; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
}

void add_outputs(CLI::App& command, command_options& options) {
  command.add_option("--json", options.json, "Write a JSON line per step and a summary per run");
  command.add_option("--trace", options.trace,
                     "Write every task with the reason of its choice, for\n"
                     "rrfp-report and ui.perfetto.dev");
  command.add_option("--metrics", options.metrics,
                     "Serve /metrics (Prometheus) and /healthz on HOST:PORT;\n"
                     ":PORT is 127.0.0.1:PORT");
  command.add_option("--reports", options.reports,
                     "The folder for hang reports (default: the folder of\n"
                     "--json; without it, stderr only). Every node writes\n"
                     "one when no stage makes progress, and on SIGUSR1");
}

void add_nodes(CLI::App& command, command_options& options, const std::string& more = "") {
  command
      .add_option("--local-nodes", options.local_nodes,
                  "Number of node processes on this machine; they share\n"
                  "the job's stages" +
                      more)
      ->check(between(1, 1024))
      ->capture_default_str();
}

void add_place(CLI::App& command, join_options& options) {
  auto& place = options.place;
  command
      .add_option("--nnodes", place.nodes,
                  "Number of nodes (else the variable WORLD_SIZE, NNODES,\n"
                  "GROUP_WORLD_SIZE, PET_NNODES or SLURM_NNODES)")
      ->check(between(1, 4096));
  command
      .add_option("--node-rank,--node_rank", place.node,
                  "Number of this node, from 0 (else RANK, NODE_RANK,\n"
                  "GROUP_RANK, PET_NODE_RANK or SLURM_NODEID)")
      ->check(between(0, 4095));
  auto* const rendezvous =
      command.add_option("--rendezvous,--rdzv-endpoint,--rdzv_endpoint", place.rendezvous,
                         "HOST:PORT where node 0 listens (else MASTER_ADDR and\n"
                         "MASTER_PORT, these with PET_ before them, or Slurm's\n"
                         "first host and port 29400)");
  command
      .add_option("--master-addr,--master_addr", place.master_host,
                  "The HOST of --rendezvous alone")
      ->excludes(rendezvous);
  command
      .add_option("--master-port,--master_port", place.master_port,
                  "The PORT of --rendezvous alone")
      ->check(between(1, 65535))
      ->excludes(rendezvous);
  command.add_option("--rendezvous-fd", options.rendezvous_fd)->group("");
  command.add_option("--key-fd", options.key_fd)->group("");
  command.add_flag("--launched", options.launched)->group("");
}

void add_export(CLI::App& command, export_options& options) {
  command
      .add_option("checkpoint", options.checkpoint,
                  "A checkpoint folder; if it holds several checkpoints,\n"
                  "the newest is used")
      ->required();
  command.add_option("--out", options.out, "The folder of the model; it must not hold a model yet")
      ->required();
  command.add_option("--base", options.base,
                     "The folder of model.pretrained: its tokenizer and its\n"
                     "untrained weights are copied");
  command.add_option("--dtype", options.dtype, "Type of the weights: float32, bfloat16, float16")
      ->check(one_of({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command
      .add_option("--max-shard-bytes", options.shard_bytes_max,
                  "Maximum size of a file; a larger model is written as\n"
                  "several files with an index")
      ->transform(CLI::AsSizeValue(false))
      ->check(between(std::uint64_t{1}, std::uint64_t{1} << 62))
      ->type_name("BYTES");
}

void add_init(CLI::App& command, init_options& options) {
  command.add_option("file", options.file, "The job file to write; it must not exist yet")
      ->required();
  command
      .add_option("--data", options.data,
                  "Kind of data: text, images (with text), or pretrained\n"
                  "(tokens for a pretrained model)")
      ->capture_default_str();
  command
      .add_option("--from", options.from,
                  "The data: text files or folders, or FILE.jsonl of\n"
                  "documents; FILE.jsonl of texts with images; NAME.bin\n"
                  "of tokens. May be repeated")
      ->take_all()
      ->allow_extra_args(false);
  command.add_option("--model", options.model, "The folder of the pretrained model");
}

void add_check(CLI::App& command, command_options& options) {
  add_job(command, options);
  add_nodes(command, options);
  command
      .add_option("--seconds", options.decode_s,
                  "Time limit for decoding the images, to find bad ones;\n"
                  "check reports how many it decoded")
      ->check(between(0.0, 1e6))
      ->capture_default_str();
}

}  // namespace

result<job::job> load(const command_options& options, bool tells_notes) {
  auto loaded = job::load_job(options.job, policies::registry(), options.settings,
                              job::job_use::train, options.program->known);
  if (loaded && tells_notes)
    for (const auto& note : loaded->notes) complain("{}", note);
  return loaded;
}

int run_node_program(const node_program& of, int argc, char** argv) {
  CLI::App app{"Trains neural networks in a pipeline: a stage runs the tasks that are ready"};
  app.set_version_flag("--version", std::string{program_name()} + " " RRFP_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 internal error or hang, or an output or the last\n"
      "checkpoint could not be written, 2 bad input, 3 a node was lost or did not\n"
      "join in time, 4 drained: another process may take its place, 130 interrupted.\n"
      "If the reader of standard output closes the pipe, the run continues and its\n"
      "later output is discarded.");

  command_options options;
  options.program = &of;
  auto* const run_job = app.add_subcommand("run", "Train the job on this machine");
  add_job(*run_job, options);
  add_outputs(*run_job, options);
  add_nodes(*run_job, options, ". With --metrics, node N serves on\nPORT+N");

  join_options joining;
  auto* const join = app.add_subcommand("join", "Train the job as one of several nodes");
  add_job(*join, options);
  add_outputs(*join, options);
  add_place(*join, joining);

  auto* const check = app.add_subcommand("check", "Validate the job and print the plan");
  add_check(*check, options);

  export_options exported;
  auto* const export_model =
      app.add_subcommand("export", "Write a checkpoint as a transformers model");
  add_export(*export_model, exported);

  init_options begun;
  auto* const init = app.add_subcommand("init", "Write a commented job file as a starting point");
  add_init(*init, begun);

  auto* const print_keys = app.add_subcommand("keys", "Print every key of a job file");
  bool as_markdown = false;
  print_keys->add_flag("--markdown", as_markdown, "Print as Markdown");
  auto* const list = app.add_subcommand("policies", "Print every policy");

  if (const auto over = parse_arguments(app, argc, argv)) return *over;
  if (run_job->parsed()) return run_command(options);
  if (join->parsed()) return join_command(options, joining);
  if (check->parsed()) return check_command(options);
  if (export_model->parsed()) return export_command(exported);
  if (init->parsed()) {
    begun.program = app.get_name();
    return init_command(begun);
  }
  if (list->parsed()) return print_policies();
  if (print_keys->parsed())
    write_out(as_markdown ? job::job_reference_markdown(of.known)
                          : job::job_reference_text(of.known));
  return exit_done;
}

}  // namespace rrfp::apps
