#include <rrfp/study/options.hpp>

#include "../rrfp-node/node_program.hpp"

int main(int argc, char** argv) {
  return rrfp::apps::run_node_program("rrfp-jitter-node", rrfp::study::schema(), argc, argv);
}
