#include "wait_word.hpp"

#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <climits>

#include <unistd.h>

namespace rrfp::tp_coord {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t old,
                 std::chrono::nanoseconds limit) {
  constexpr std::chrono::nanoseconds::rep second = 1'000'000'000;
  const timespec time{limit.count() / second, limit.count() % second};
  // Every return value has the same meaning for the caller: check the word again.
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, old, &time, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rrfp::tp_coord
