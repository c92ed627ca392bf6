// pipewright list profiles: what can be named in a scenario or on the command line.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "pipewright/profile.hpp"

namespace pipewright::cli {
namespace {

void list_profiles(const std::string& json) {
  using Json = nlohmann::ordered_json;
  Table table({"profile", "device", "memory", "origin"});
  Json out = {{"profiles", Json::array()}};
  for (const auto& name : profile::known_profiles()) {
    const auto p = profile::load(name, {"list", 0});
    table.add({name, p.device, format_bytes(p.memory), std::string(profile::name(p.origin))});
    out["profiles"].push_back(
        {{"name", name}, {"device", p.device}, {"memory_bytes", p.memory.value}, {"origin", profile::name(p.origin)}});
  }
  if (json != "-") write_result("-", table.text());
  if (!json.empty()) write_result(json, out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

void add_list(CLI::App& app, Outcome&) {
  auto* command = app.add_subcommand("list", "List what can be named: profiles");
  command->require_subcommand(1);
  const auto json = std::make_shared<std::string>();
  auto* profiles = command->add_subcommand("profiles", "Profiles beside the program and in $PIPEWRIGHT_PROFILES");
  profiles->add_option("--json", *json, "write JSON to this file (-: standard output)");
  profiles->callback([json] { list_profiles(*json); });
}

}  // namespace pipewright::cli
