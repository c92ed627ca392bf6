#include "layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>

#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"

namespace pipewright::scenario {
namespace {

constexpr std::size_t longest_layout = 1U << 20U;  // letters after unrolling

UsageError refuse_layout(const Position& where, const std::string& message) { return {where, layout_key, message}; }

// The count after an asterisk at `at`; moves `at` behind it.
std::size_t repeats(const std::string& text, std::size_t& at, const Position& where) {
  std::size_t count = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), count);
  if (error != std::errc() || count > longest_layout)
    throw refuse_layout(where, "a number must follow * in the layout");
  at = static_cast<std::size_t>(end - text.data());
  return count;
}

void repeat(std::string& out, const std::string& part, std::size_t count, const Position& where) {
  if (out.size() + part.size() * count > longest_layout) throw refuse_layout(where, "the layout has too many layers");
  for (std::size_t i = 0; i < count; ++i) out += part;
}

// Megatron applies two substitutions in turn: (..)*n, then x*n for one letter (or bar) x.
std::string unroll_groups(const std::string& text, const Position& where) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '(') {
      out += text[at++];
      continue;
    }
    const std::size_t close = text.find(')', at);
    if (close == std::string::npos || close == at + 1 || close + 1 >= text.size() || text[close + 1] != '*') {
      throw refuse_layout(where, "a group in the layout is written (tt|)*4");
    }
    const std::string group = text.substr(at + 1, close - at - 1);
    at = close + 2;
    const std::size_t count = repeats(text, at, where);
    repeat(out, group, count, where);
  }
  return out;
}

std::string unroll_letters(const std::string& text, const Position& where) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::string letter(1, text[at++]);
    std::size_t count = 1;
    if (at < text.size() && text[at] == '*') count = repeats(text, ++at, where);
    repeat(out, letter, count, where);
  }
  return out;
}

Int virtual_stages(const Scenario& s) { return s.settings.pipeline_model_parallel_size * num_chunks(s); }

// Decoder layers of a whole pipeline rank without a layout; embedding and loss count where they are accounted for.
Int layers_of_rank(const Scenario& s, Int rank) {
  const Settings& c = s.settings;
  Int layers = s.model.num_layers, stages = c.pipeline_model_parallel_size;
  if (!c.num_layers_in_first_pipeline_stage && !c.num_layers_in_last_pipeline_stage) {
    layers += Int{c.account_for_embedding_in_pipeline_split} + Int{c.account_for_loss_in_pipeline_split};
    return layers / stages;
  }
  if (rank == 0 && c.num_layers_in_first_pipeline_stage) return *c.num_layers_in_first_pipeline_stage;
  if (rank == stages - 1 && c.num_layers_in_last_pipeline_stage) return *c.num_layers_in_last_pipeline_stage;
  for (const OptInt& end : {c.num_layers_in_first_pipeline_stage, c.num_layers_in_last_pipeline_stage}) {
    layers -= end.value_or(0);
    stages -= end ? 1 : 0;
  }
  return stages > 0 ? layers / stages : 0;
}

Int count(const std::string& stage, char letter) { return std::count(stage.begin(), stage.end(), letter); }

// The assertions of PipelineParallelLayerLayout, with its messages.
void check_layout(const Scenario& s) {
  const Settings& c = s.settings;
  const Position where = position(s, layout_key);
  const auto refuse = [&](const std::string& message) { return refuse_layout(where, message); };
  if (c.num_layers_in_first_pipeline_stage || c.num_layers_in_last_pipeline_stage ||
      c.account_for_embedding_in_pipeline_split || c.account_for_loss_in_pipeline_split) {
    throw refuse("pipeline_model_parallel_layout cannot be set with other pipeline layout arguments");
  }
  const Strings stages = unroll_layout(*c.pipeline_model_parallel_layout, where);
  const Int p = c.pipeline_model_parallel_size, total = static_cast<Int>(stages.size());
  if (total % p != 0) {
    throw refuse(
        fmt::format("pipeline_model_parallel_layout must be divisible by pipeline_model_parallel_size "
                    "({} stages, pipeline_model_parallel_size={})",
                    total, p));
  }
  if (c.virtual_pipeline_model_parallel_size && *c.virtual_pipeline_model_parallel_size != total / p) {
    throw refuse(
        fmt::format("virtual_pipeline_model_parallel_size conflicts with pipeline_model_parallel_layout "
                    "({} against {})",
                    *c.virtual_pipeline_model_parallel_size, total / p));
  }
  std::string flat;
  for (const std::string& stage : stages) flat += stage;
  if (!flat.starts_with('E')) throw refuse("The first layer must be embedding");
  if (!flat.ends_with('L')) throw refuse("The last layer must be loss");
  if (count(flat, 'E') != 1) throw refuse("Embedding must be specified exactly once");
  if (count(flat, 'L') != 1) throw refuse("Loss must be specified exactly once");
  if (count(flat, 't') != s.model.num_layers) {
    throw refuse(
        fmt::format("Number of decoder layers {} must match num_layers {}", count(flat, 't'), s.model.num_layers));
  }
  const Int mtp = s.model.mtp_num_layers.value_or(0);
  if (count(flat, 'm') != mtp) throw refuse("Number of mtp layers in layout must match mtp_num_layers");
  if (mtp == 0) return;
  if (flat.find('m') < flat.rfind('t')) throw refuse("decoder layers must be placed before MTP layers");
  for (Int index = 0; index < total; ++index) {
    const std::string& stage = stages[static_cast<std::size_t>(index)];
    if (count(stage, 'm') == 0) continue;
    if (count(stage, 'm') != mtp) throw refuse("All of the MTP layers must be in the same one virtual pipeline stage");
    if (index / p != total / p - 1) {
      throw refuse(
          "Currently we restrict that the MTP should be always in the last virtual pipeline stage of that rank");
    }
  }
}

/// Of a hybrid whose pattern has pipes: models/hybrid/hybrid_layer_allocation.py, select_pipeline_segment, and the
/// checks of training/arguments.py before it.
void check_segments(const Scenario& s) {
  const Settings& c = s.settings;
  const std::string key = "model.hybrid_layer_pattern";
  const Int segments = static_cast<Int>(hybrid_segments(s).size()), p = c.pipeline_model_parallel_size;
  const auto refuse = [&](const std::string& message) { return UsageError(position(s, key), key, message); };
  if (core_version(s.software) < Version::v0_17) throw refuse("pipe ('|') separators exist from Megatron Core 0.17 on");
  if (c.num_layers_in_first_pipeline_stage || c.num_layers_in_last_pipeline_stage)
    throw refuse(
        "cannot specify num_layers_in_first_pipeline_stage or num_layers_in_last_pipeline_stage when "
        "hybrid_layer_pattern contains pipe ('|') separators");
  if (p == 1)
    throw refuse(
        fmt::format("{} pipeline segments, but pipeline_model_parallel_size 1 builds the first alone: leave "
                    "the pipes out or set it",
                    segments));
  if (segments % p != 0)
    throw refuse(
        fmt::format("the number of pipe-delimited segments ({}) must be evenly divisible by "
                    "pipeline_model_parallel_size ({})",
                    segments, p));
  if (s.software.megatron_bridge && segments > p)  // models/hybrid/hybrid_provider.py, provide
    throw refuse(
        fmt::format("{} segments on {} pipeline ranks: virtual pipeline model parallelism is unsupported in Megatron "
                    "Bridge's hybrid models",
                    segments, p));
  if (c.virtual_pipeline_model_parallel_size && *c.virtual_pipeline_model_parallel_size != segments / p)
    throw UsageError(position(s, "settings.virtual_pipeline_model_parallel_size"),
                     "settings.virtual_pipeline_model_parallel_size",
                     fmt::format("{} conflicts with the {} segments of hybrid_layer_pattern on {} pipeline ranks",
                                 *c.virtual_pipeline_model_parallel_size, segments, p));
}

void check_hybrid(const Scenario& s) {
  const Settings& c = s.settings;
  if (c.pipeline_model_parallel_layout)
    throw UsageError(position(s, layout_key), layout_key,
                     "should not be used with hybrid_layer_pattern: | separators in the pattern define the stages");
  if (c.account_for_embedding_in_pipeline_split || c.account_for_loss_in_pipeline_split) {
    const std::string name = c.account_for_embedding_in_pipeline_split ? "account_for_embedding_in_pipeline_split"
                                                                       : "account_for_loss_in_pipeline_split";
    throw UsageError(position(s, "settings." + name), "settings." + name,
                     "should not be used with hybrid_layer_pattern: | separators in the pattern define the stages");
  }
  if (hybrid_segments(s).size() > 1) return check_segments(s);
  if (c.virtual_pipeline_model_parallel_size)
    throw UsageError(position(s, "settings.virtual_pipeline_model_parallel_size"),
                     "settings.virtual_pipeline_model_parallel_size",
                     "a hybrid's virtual stages are the segments between | in hybrid_layer_pattern, which has none");
}

// TransformerConfig.__post_init__, "Uneven PP".
void check_uneven(const Scenario& s) {
  const Settings& c = s.settings;
  if (c.account_for_embedding_in_pipeline_split || c.account_for_loss_in_pipeline_split) {
    const std::string name = c.num_layers_in_first_pipeline_stage ? "num_layers_in_first_pipeline_stage"
                                                                  : "num_layers_in_last_pipeline_stage";
    throw UsageError(position(s, "settings." + name), "settings." + name,
                     "cannot be set at the same time with account_for_embedding_in_pipeline_split and "
                     "account_for_loss_in_pipeline_split");
  }
  Int layers = s.model.num_layers, stages = c.pipeline_model_parallel_size;
  const OptInt v = c.virtual_pipeline_model_parallel_size;
  const auto end = [&](const OptInt& given, const std::string& name) {
    if (!given) return;
    const auto refuse = [&](const std::string& m) {
      return UsageError(position(s, "settings." + name), "settings." + name, m);
    };
    if (*given <= 0) throw refuse(name + " must be larger than 0");
    if (v && *given % *v != 0) {
      throw refuse(fmt::format("{} layers must be divisible by virtual pipeline parallel degree {}", *given, *v));
    }
    layers -= *given;
    --stages;
  };
  end(c.num_layers_in_first_pipeline_stage, "num_layers_in_first_pipeline_stage");
  end(c.num_layers_in_last_pipeline_stage, "num_layers_in_last_pipeline_stage");
  const auto refuse = [&](const std::string& m) {
    return UsageError(position(s, "model.num_layers"), "model.num_layers", m);
  };
  if ((layers != 0) != (stages != 0) || layers < 0 || stages < 0) {
    throw refuse(fmt::format("Mismatch: {} middle layers remaining but {} middle PP stages available", layers, stages));
  }
  // transformer_layer.py, get_transformer_layer_offset
  if (stages == 0 && v)
    throw UsageError(
        position(s, "settings.virtual_pipeline_model_parallel_size"), "settings.virtual_pipeline_model_parallel_size",
        "ZeroDivisionError: integer division or modulo by zero: Megatron Core divides the layers of a chunk "
        "by the number of middle stages, and first and last stage are all there are; leave one of "
        "num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage out, or give "
        "pipeline_model_parallel_layout");
  if (stages == 0) return;
  if (layers % stages != 0) {
    throw refuse(
        fmt::format("number of layers at middle stage: {} must be divisible by the middle pipeline model parallel "
                    "size {}",
                    layers, stages));
  }
  if (v && layers / stages % *v != 0) {
    throw refuse(
        fmt::format("number of layers on each middle pipeline rank: {} must be divisible by virtual pipeline "
                    "parallel degree {}",
                    layers / stages, *v));
  }
}

}  // namespace

Strings unroll_layout(const std::string& layout, const Position& where) {
  std::string text = layout;
  std::erase(text, ',');  // cosmetic
  text = unroll_letters(unroll_groups(text, where), where);
  Strings stages(1);
  for (const char letter : text) {
    if (letter == '|') {
      stages.emplace_back();
    } else if (std::string_view("EtmL").find(letter) == std::string_view::npos) {
      throw UsageError(where, layout_key, fmt::format("Invalid layer character: {}", letter), {"E", "t", "m", "L"});
    } else {
      stages.back() += letter;
    }
  }
  return stages;
}

const Strings& unrolled_layout(const Scenario& s) {
  thread_local std::string layout;
  thread_local Strings stages;
  if (const auto& own = *s.settings.pipeline_model_parallel_layout; own != layout || stages.empty()) {
    stages = unroll_layout(own, position(s, layout_key));
    layout = own;
  }
  return stages;
}

void check_split(const Scenario& s) {
  const Settings& c = s.settings;
  if (is_hybrid(s)) check_hybrid(s);
  if (hybrid_segments(s).size() > 1) return;
  if (c.pipeline_model_parallel_layout) return check_layout(s);
  if (c.num_layers_in_first_pipeline_stage || c.num_layers_in_last_pipeline_stage) return check_uneven(s);
  const Int p = c.pipeline_model_parallel_size;
  const Int extra = Int{c.account_for_embedding_in_pipeline_split} + Int{c.account_for_loss_in_pipeline_split};
  const Int layers = s.model.num_layers + extra;
  const std::string counted = extra > 0 ? fmt::format("{} layers, embedding or loss among them,", layers)
                                        : fmt::format("num_layers {}", layers);
  if (layers % p != 0) {
    throw UsageError(position(s, "settings.pipeline_model_parallel_size"), "settings.pipeline_model_parallel_size",
                     fmt::format("{} must be divisible by pipeline_model_parallel_size {}", counted, p));
  }
  if (interleaved(s) && layers / p % num_chunks(s) != 0) {
    throw UsageError(position(s, "settings.virtual_pipeline_model_parallel_size"),
                     "settings.virtual_pipeline_model_parallel_size",
                     fmt::format("number of layers on each pipeline rank {} must be divisible by "
                                 "virtual_pipeline_model_parallel_size {}",
                                 layers / p, num_chunks(s)));
  }
}

Stage stage(const Scenario& s, Int pp_rank, Int chunk) {
  const Settings& c = s.settings;
  const Int p = c.pipeline_model_parallel_size, v = num_chunks(s), index = chunk * p + pp_rank;
  if (pp_rank < 0 || pp_rank >= p || chunk < 0 || chunk >= v) throw InternalError("no such model chunk");
  Stage held;
  Int first = 0, layers = 0;
  if (c.pipeline_model_parallel_layout) {
    const Strings& stages = unrolled_layout(s);
    for (Int before = 0; before < index; ++before) first += count(stages[static_cast<std::size_t>(before)], 't');
    const std::string& own = stages[static_cast<std::size_t>(index)];
    layers = count(own, 't');
    held.embedding = count(own, 'E') > 0;
    held.loss = count(own, 'L') > 0;
    held.mtp_layers = count(own, 'm');
  } else if (const Strings segments = hybrid_segments(s); segments.size() > 1) {
    for (Int before = 0; before < index; ++before)
      first += static_cast<Int>(segments.at(static_cast<std::size_t>(before)).size());
    layers = static_cast<Int>(segments.at(static_cast<std::size_t>(index)).size());
    held.embedding = index == 0;
    held.loss = index == virtual_stages(s) - 1;
  } else {
    // Layers before this chunk: those of the same chunk on earlier ranks, and of all ranks in earlier chunks.
    for (Int before = 0; before <= index; ++before) {
      layers = layers_of_rank(s, before % p) / v;
      if (before == 0) layers -= Int{c.account_for_embedding_in_pipeline_split};
      if (before == p * v - 1) layers -= Int{c.account_for_loss_in_pipeline_split};
      if (before < index) first += layers;
    }
    held.embedding = index == 0;
    held.loss = index == virtual_stages(s) - 1;
    held.mtp_layers = held.loss ? s.model.mtp_num_layers.value_or(0) : 0;
  }
  held.layers.resize(static_cast<std::size_t>(std::max<Int>(layers, 0)));
  std::iota(held.layers.begin(), held.layers.end(), first);
  return held;
}

Ints layers_of(const Scenario& s, Int pp_rank, Int chunk) { return stage(s, pp_rank, chunk).layers; }

bool adapts_latent(const Scenario& s) {
  constexpr std::array names = {"linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj",
                                "linear_kv_up_proj"};
  const auto& targets = s.settings.lora_target_modules;
  return s.model.multi_latent_attention && std::ranges::any_of(names, [&](const char* name) {
           return std::ranges::find(targets, name) != targets.end();
         });
}

AdaptedLinears adapted_linears(const Scenario& s, Int layer) {
  const auto named = [&](const char* name) {
    return std::ranges::find(s.settings.lora_target_modules, name) != s.settings.lora_target_modules.end();
  };
  AdaptedLinears a;
  if (is_mamba_layer(s, layer) || is_linear_attention_layer(s, layer)) {
    a.mixer_in = named("in_proj"), a.mixer_out = named("out_proj");
  } else if (is_attention_layer(s, layer)) {
    a.mixer_in = s.model.multi_latent_attention ? adapts_latent(s) : named("linear_qkv");
    a.mixer_out = named("linear_proj");
  }
  if (has_mlp(s, layer)) a.fc1 = named("linear_fc1"), a.fc2 = named("linear_fc2");
  return a;
}

OptInt first_adapted_layer(const Scenario& s) {
  for (const Int layer : layers_of(s, 0, 0))
    if (const auto a = adapted_linears(s, layer); a.mixer() || a.mlp()) return layer;
  return {};
}

}  // namespace pipewright::scenario
