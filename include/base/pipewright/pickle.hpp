// Files that Python wrote for itself, where a document of words is expected.
#pragma once

#include <string_view>

namespace pipewright {

/// By the first opcode of protocol 2 and later, PROTO (pickletools).
constexpr bool is_pickle(std::string_view begins) { return begins.starts_with('\x80'); }

}  // namespace pipewright
