#include <rrfp/study/blocking_sends.hpp>
#include <rrfp/study/options.hpp>

#include "../common/program.hpp"
#include "../rrfp-node/node_program.hpp"

int main(int argc, char** argv) {
  using namespace rrfp;
  apps::run_program("rrfp-jitter-node", argc, argv,
                    std::bind_front(apps::run_node_program,
                                    apps::node_program{study::schema(), &study::prepare_session}));
}
