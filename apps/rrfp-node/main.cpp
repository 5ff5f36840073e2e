#include "../common/program.hpp"
#include "node_program.hpp"

int main(int argc, char** argv) {
  using namespace rrfp;
  apps::run_program(
      "rrfp-node", argc, argv,
      std::bind_front(apps::run_node_program, apps::node_program{job::runtime_schema(), {}}));
}
