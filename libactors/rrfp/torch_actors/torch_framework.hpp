/// libtorch as the framework of jobs.
#pragma once

#include <memory>

#include <rrfp/actors/framework.hpp>

namespace rrfp::actors {

std::unique_ptr<framework> make_torch_framework();

/// Lets the ranks of the session compute on the devices that the job asks for. Error: as
/// framework::open().
status compute_on_devices_of(const job::job& j, session_setup& setup);

}  // namespace rrfp::actors
