// Packing, see pack.hpp.
#include "pack.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include "pipewright/base.hpp"

namespace pipewright::report {
namespace {

std::string deflated(const std::vector<const std::string*>& parts) {
  constexpr int level = 9;
  z_stream stream{};
  if (deflateInit(&stream, level) != Z_OK) throw InternalError("zlib cannot start");
  std::string out, buffer(std::size_t{1} << 18U, '\0');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(parts[i]->data()));
    stream.avail_in = static_cast<uInt>(parts[i]->size());
    do {
      stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
      stream.avail_out = static_cast<uInt>(buffer.size());
      deflate(&stream, i + 1 == parts.size() ? Z_FINISH : Z_NO_FLUSH);
      out.append(buffer.data(), buffer.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  }
  deflateEnd(&stream);
  return out;
}

std::string base64_of(const std::string& bytes) {
  constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8U | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? digits[group >> (18 - 6 * k) & 63U] : '=';
  }
  return out;
}

}  // namespace

Column& Pack::column(std::string name) {
  columns_.emplace_back(std::move(name), std::make_unique<Column>());
  return *columns_.back().second;
}

std::string Pack::base64(const std::string& json) const {
  std::string head = "{" + json + (json.empty() ? "" : ",") + "\"columns\":{";
  std::size_t offset = 0;
  const char* comma = "";
  for (const auto& [name, column] : columns_) {
    head += fmt::format("{}\"{}\":[{},{},{}]", std::exchange(comma, ","), name, offset, column->bytes().size(),
                        column->size());
    offset += column->bytes().size();
  }
  head += "}}";
  std::string length;
  for (unsigned shift = 0; shift < 32; shift += 8) length += static_cast<char>(head.size() >> shift & 255U);
  std::vector<const std::string*> parts = {&length, &head};
  for (const auto& entry : columns_) parts.push_back(&entry.second->bytes());
  return base64_of(deflated(parts));
}

}  // namespace pipewright::report
