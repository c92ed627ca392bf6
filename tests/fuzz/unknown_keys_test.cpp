// What nobody reads is refused by its name, wherever it stands: a strange key in every object of every kind of file
// whose keys are pipewright's own or Megatron's. Argument: tests/.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../draws.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/io.hpp"
#include "targets.hpp"

namespace {

using namespace pipewright;
using Json = nlohmann::ordered_json;

constexpr const char* strange = "nobodyreadsthis";
int asked = 0, failed = 0, files = 0;

std::string content(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class Read>
void must_refuse(const std::string& what, const Read& read) {
  ++asked;
  std::string said = "it was read";
  try {
    read();
  } catch (const UsageError& error) {
    said = error.what();
    if (said.find(strange) != std::string::npos) return;
  } catch (const std::exception& error) {
    said = error.what();
  }
  std::printf("%s: %s\n", what.c_str(), said.substr(0, 200).c_str());
  ++failed;
}

const fuzz::Target& target(std::string_view name) {
  for (const auto& each : fuzz::targets())
    if (each.name == name) return each;
  throw InternalError("no such target");
}

/// Objects of a list are alike: the first and the last stand for all.
void each_object(Json& at, const std::string& way, const std::function<void(Json&, const std::string&)>& body) {
  if (at.is_object()) {
    body(at, way);
    std::vector<std::string> keys;
    for (const auto& [key, value] : at.items()) keys.push_back(key);
    for (const auto& key : keys) each_object(at[key], way + "." + key, body);
  } else if (at.is_array() && !at.empty()) {
    each_object(at.front(), way + "[0]", body);
    if (at.size() > 1) each_object(at.back(), way + "[-1]", body);
  }
}

/// `free`: objects whose keys are names that the file gives.
void json(const char* kind, const std::filesystem::path& file, const std::vector<std::string>& free) {
  Json whole = Json::parse(content(file));
  each_object(whole, "", [&](Json& object, const std::string& way) {
    if (std::ranges::find(free, way) != free.end()) return;
    object[strange] = 1;
    const std::string bytes = whole.dump();
    object.erase(strange);
    must_refuse(file.filename().string() + way, [&] { target(kind).run(bytes); });
  });
}

/// A key more in every map: behind the brace that opens it, or as a line before each `key: value` of its lines.
void yaml(const std::filesystem::path& file, const std::vector<std::string>& free) {
  const std::string text = content(file);
  const std::string key = std::string(strange) + ": 1";
  int depth = 0, quotes = 0;  // quotes: of a text that goes on over lines
  std::string above;          // the line that ends in the map's name
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::size_t indent = line.find_first_not_of(' ');
    const std::size_t remark = std::min(line.find(" #"), line.size());
    const bool within = quotes % 2 != 0;
    quotes += static_cast<int>(std::ranges::count(line, '\''));
    if (indent != std::string::npos && line[indent] != '#' && !within) {
      if (line.ends_with(':')) above = line;
      const auto is_free = [&](const std::string& name) {
        return line.find(name) != std::string::npos || (indent > 0 && above.find(name) != std::string::npos);
      };
      if (std::ranges::none_of(free, is_free)) {
        const auto must = [&](std::size_t at, const std::string& more) {
          must_refuse(file.filename().string() + ": " + line.substr(0, 60),
                      [&] { target("scenario").run(std::string(text).insert(at, more)); });
        };
        const bool of_a_list = line[indent] == '-';
        if (depth == 0 && !of_a_list && line.find(':') < remark) must(begin, std::string(indent, ' ') + key + "\n");
        for (std::size_t i = 0; i < remark; ++i)
          if (line[i] == '{') must(begin + i + 1, line[i + 1] == '}' ? key : key + ", ");
      }
      depth += static_cast<int>(std::count(line.begin(), line.end(), '{') - std::count(line.begin(), line.end(), '}'));
    }
    begin = end + 1;
  }
}

}  // namespace

int main(int, char** argv) {
  const std::filesystem::path tests = argv[1];
  for (const auto* file : {"profile/data/tiny.json", "cli/data/profiles/table.json"})
    json("profile", tests / file, {".versions"});
  json("events", tests / "fuzz/corpus/events/09_replay_marks.mem.json", {});
  for (const auto* folder : {"measured", "published", "real", "fuzz/corpus/scenario"})
    for (const auto& entry : std::filesystem::directory_iterator(tests / folder))
      if (entry.path().extension() == ".yaml" && ++files % 4 == 0 && test::taken(files / 4))
        yaml(entry.path(), {"environment:", "tp_comm_overlap_cfg:"});
  const std::string name = strange;
  must_refuse("flags", [&] { emit::require_known_flags(emit::from_megatron("--num-layers 2 --" + name + " 1", {})); });
  must_refuse("--set", [&] {
    scenario::Scenario s;
    scenario::set(s, name + "=1");
  });
  for (const char* of : {"model", "ddp", "train", "optimizer", "comm_overlap", "mixed_precision"})
    must_refuse(std::string("cfg.") + of, [&] {
      const auto read = emit::from_bridge_text(
          fmt::format("cfg.model.num_layers = 2\ncfg.model.vocab_size = 9\ncfg.{}.{} = 1\n", of, strange), "x.py", {});
      // Some sections hold much that is known to nobody here: that is told.
      for (const auto& note : read.notes)
        if (note.starts_with("not known here, and passed over")) throw UsageError(note);
    });
  std::printf("%d strange keys\n", asked);
  return failed == 0 && asked > 100 ? 0 : 1;
}
