// The keys of the JSON that this program writes, as one number.
#pragma once

#include <cstdint>
#include <string>

#include "pipewright/base.hpp"

namespace pipewright {

/// Grows where a key goes or changes its meaning, not where one is added.
inline constexpr int json_schema = 2;

/// Of a JSON that is read back. Throws UsageError: its `schema` is a later one.
inline void refuse_later_schema(std::int64_t schema, const std::string& file) {
  if (schema > json_schema)
    throw UsageError({file, 0}, "schema",
                     std::to_string(schema) + " is of a later version of pipewright; this one reads up to " +
                         std::to_string(json_schema));
}

}  // namespace pipewright
