// Included before each source that goes into a wheel. GCC 12's libstdc++ has a second version of this function, which the
// linker would choose; with the first one the wheel also runs with GCC 11's, as on Red Hat Enterprise Linux 9.
#pragma once

__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, "
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
