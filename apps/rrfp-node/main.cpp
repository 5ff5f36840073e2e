#include "node_program.hpp"

int main(int argc, char** argv) {
  rrfp::apps::run_node_program({"rrfp-node", rrfp::job::runtime_schema(), {}}, argc, argv);
}
