#include <rrfp/study/options.hpp>

#include "../rrfp-node/node_program.hpp"
#include "blocking_sends.hpp"

int main(int argc, char** argv) {
  using namespace rrfp;
  return apps::run_node_program({"rrfp-jitter-node", study::schema(), &experiment::prepare_session},
                                argc, argv);
}
