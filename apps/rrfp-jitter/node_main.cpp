#include <rrfp/study/blocking_sends.hpp>
#include <rrfp/study/options.hpp>

#include "../rrfp-node/node_program.hpp"

int main(int argc, char** argv) {
  using namespace rrfp;
  apps::run_node_program({"rrfp-jitter-node", study::schema(), &study::prepare_session}, argc,
                         argv);
}
