// The JSON of nccl-tests' option -J (src/util.cu, JSON_FILE_VERSION 3).
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "nccl_runs.hpp"

namespace pipewright::nccl_tests {

Run read_json(const std::string& path, const std::string& content) {
  using Json = nlohmann::json;
  const auto refuse = [&](const std::string& key, const std::string& why) { return UsageError({path, 0}, key, why); };
  Json root;
  try {
    root = Json::parse(content);
  } catch (const Json::exception&) {
    throw refuse({}, "is no complete JSON: did the program end before it closed the file?");
  }
  std::string at;  // the key that is being read
  const auto field = [&](const Json& of, const std::string& way, const char* key) -> const Json& {
    at = way.empty() ? key : way + "." + key;
    if (!of.is_object() || !of.contains(key)) throw refuse(at, "is missing");
    return of.at(key);
  };
  try {
    Run run;
    run.at.file = path;
    const Json& arguments = field(root, "", "args");
    if (!arguments.empty()) run.program = arguments.at(0).get<std::string>();
    run.nccl = std::to_string(field(root, "", "nccl_version").get<int>());
    const Json& config = field(root, "", "config");
    run.iterations = std::max(1, field(config, "config", "iterations").get<int>());
    // An entry stands for a process: of its GPUs only the first is written.
    const auto each =
        field(config, "config", "nthreads").get<std::int64_t>() * field(config, "config", "ngpus").get<std::int64_t>();
    if (each < 1 || each > 1024) throw refuse("config.ngpus", "GPUs of a process, times its threads: 1 to 1024");
    for (std::size_t i = 0; const Json& device : field(config, "config", "devices")) {
      const auto way = fmt::format("config.devices[{}]", i++);
      Gpu first;
      first.group = std::to_string(field(device, way, "group").get<int>());
      first.host = field(device, way, "hostname").get<std::string>();
      first.device_name = field(device, way, "device_info").get<std::string>();
      first.device = field(device, way, "device").get<std::int64_t>();
      for (std::int64_t g = 0; g < each; ++g) {
        run.gpus.push_back(first);
        run.gpus.back().device += g;
      }
    }
    for (std::size_t i = 0; const Json& result : field(root, "", "results")) {
      const auto way = fmt::format("results[{}]", i++);
      Row row;
      row.at.file = path;
      row.key = way;
      row.bytes = field(result, way, "size").get<std::int64_t>();
      for (const char* place : {"out_of_place", "in_place"}) {
        if (!result.contains(place) || result.at(place).is_null()) continue;
        const Json& body = result.at(place);
        const auto here = way + "." + place;
        if (body.contains("cpu_time"))
          throw refuse(here + ".cpu_time", "times of the CPU (-C 1) are not those of the transfer");
        row.us.push_back(field(body, here, "time").get<double>());
        row.busbw.push_back(field(body, here, "bus_bw").get<double>());
        if (row.algbw == 0) row.algbw = field(body, here, "alg_bw").get<double>();
        const Json& wrong = field(body, here, "nwrong");
        if (wrong.is_number() && wrong.get<double>() > 0)
          throw refuse(here + ".nwrong", "the transfer gave wrong data: its time says nothing");
      }
      run.rows.push_back(std::move(row));
    }
    return run;
  } catch (const Json::exception&) {
    throw refuse(at, "is not what nccl-tests writes there");
  }
}

}  // namespace pipewright::nccl_tests
