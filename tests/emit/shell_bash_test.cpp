// Launch scripts are followed as bash runs them: drawn scripts, run by bash itself.
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../../src/emit/shell.hpp"
#include "../draws.hpp"
#include "pipewright/base.hpp"

namespace shell_bash_test {

using namespace pipewright;

namespace {

using Calls = std::vector<std::vector<std::string>>;
struct Truth {
  Calls calls;
  bool whole = false;  ///< bash came to the script's end: nothing in it was an error
};

/// Scripts whose variables are all set: I, J, K hold integers, S, T texts, L, M lists; f to h are functions.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  std::string script() {
    std::string text =
        "set -- one 'two 2'\nP=T\nI=3 J=-2\nK=07\nS=llama3-8B T='x y.z'\nL=(--num-layers 4)\nM=(\"a b\" c # a "
        "comment\n  d)\n";
    const int statements = 4 + number(8);
    for (int i = 0; i < statements; ++i) text += statement(0);
    return text + call();
  }

 private:
  int number(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  bool maybe(int of = 2) { return number(of) == 0; }
  std::string one(std::vector<std::string> of) {
    return of[static_cast<std::size_t>(number(static_cast<int>(of.size())))];
  }
  std::string integer() { return one({"I", "J", "K"}); }
  std::string text() { return one({"S", "T"}); }
  std::string list() { return one({"L", "M"}); }

  std::string expression(int depth) {
    if (depth > 2 || maybe(3))
      return one({"1", "2", "5", "010", "0x1f", "I", "$J", "${K}", "K", "${#S}", "${#L[@]}", "${NONE:-4}"});
    const auto sub = [&] { return expression(depth + 1); };
    switch (number(6)) {
      case 0:
        return "(" + sub() + ")";
      case 1:
        return sub() + " ? " + sub() + " : (" + sub() + ")";
      case 2:
        return one({"-", "!", "~"}) + "(" + sub() + ")";
      default:
        return sub() +
               one({" + ", " - ", "*", " == ", " < ", "<=", " && ", "||", " | ", "&", "^", " % 7 + ", " / 3 - "}) +
               sub();
    }
  }

  std::string changed() {
    const std::string name = text();
    return one({"$" + name,
                "${" + name + "}",
                "${" + name + "%-*}",
                "${" + name + "%%[l.]*}",
                "${" + name + "#*[a.]}",
                "${" + name + "##*l}",
                "${" + name + "/l/_}",
                "${" + name + "//l/}",
                "${" + name + "/#x/Q}",
                "${" + name + "/%B/Q}",
                "${" + name + "^^}",
                "${" + name + ",}",
                "${" + name + ":1}",
                "${" + name + ":0:2}",
                "${" + name + ": -2}",
                "${" + name + ":+set}",
                "${NONE:-$" + name + "}",
                "${NONE+x}",
                "${!P}",
                "$(( " + expression(1) + " ))",
                "${" + list() + "[1]}",
                "${" + list() + "[-1]}",
                "$(echo $I a)",
                "${1:-none}",
                "$#",
                "$*"});
  }

  std::string value() {
    return one(
        {"7", "abc", "\"" + changed() + "\"", "'$I'", "\"" + changed() + "-" + changed() + "\"", "p\\ q", changed()});
  }

  std::string condition() {
    switch (number(8)) {
      case 0:
        return "[ $I -" + one({"lt", "ge", "eq", "ne"}) + " " + one({"3", "$J", "-1"}) + " ]";
      case 1:
        return "[[ $S == " + one({"llama*", "x", "\"$S\"", "*8[AB]"}) + " ]]";
      case 2:
        return "[[ \"$S\" =~ ^([a-z]+)[0-9] && ! ( $I -gt 4 || -z $T ) ]]";
      case 3:
        return "((" + expression(0) + "))";
      case 4:
        return "[ -n \"$T\" -a \"$S\" != x ]";
      case 5:
        return "[[ $S " + one({"<", ">"}) + " \"$T\" ]]";
      case 6:
        return "! test \"$I\" = 3";
      default:
        return "[[ -v " + one({"S", "L", "T"}) + " ]]";
    }
  }

  std::string body(int depth) {
    std::string out;
    for (int i = 0; i <= number(2); ++i) out += statement(depth + 1);
    return out;
  }

  /// What may stand behind a compound command; behind a pipe nothing of what it has set is left.
  std::string behind() {
    return one({"", "", "", "", " < /dev/null", " < <(echo x; echo y)", " <<< word", " 2> >(cat)", " | cat"}) + "\n";
  }

  std::string call() {
    std::string out = "torchrun";
    for (int i = 0; i <= number(5); ++i)
      out += " " +
             one({"\"$I\"", "$J", "\"" + changed() + "\"", changed(), "\"${L[@]}\"", "${M[@]}", "\"${M[*]}\"",
                  "${#M[@]}", "\"${L[@]:1}\"", "\"$@\"", "$*", "x{1,$I}", "{a,b}{1..3}", "'a  b'", "\"\"", "--x=$K"});
    return out + one({"", "", " > log", " 2>&1 | cat", " &>> log"}) + "\n";
  }

  std::string statement(int depth) {
    const bool deep = depth > 2;
    const std::string leave = loops_ > 0 && maybe(3) ? one({"break", "continue"}) + "\n" : "";
    switch (number(deep ? 12 : 22)) {
      case 0:
        return integer() + "=$((" + expression(0) + "))\n";
      case 1:
        return "((" + integer() + one({" = ", " += ", " -= "}) + expression(0) + "))\n";
      case 2:
        return one({"((", "let \""}) == "((" ? "((" + integer() + one({"++", "--"}) + "))\n"
                                             : "let \"" + integer() + "=I*2\" J+=1\n";
      case 3:
        return text() + one({"=", "=", "+="}) + value() + "\n";
      case 4:
        return "S=" + value() + " T=$S\n";
      case 5:
        return list() + "+=(" + value() + " " + value() + ")\n";
      case 6:
        return one({"L[${#L[@]}]=", "M[0]=", "L+=", "M+=", "L[0]="}) + value() + "\n";
      case 7:
        return list() + "=(" + value() + " \"${L[@]}\" " + value() + ")\n";
      case 8:
        return condition() + one({" && ", " || "}) + one({"I=5", "S=short", "{ J=1; T=two; }"}) + "\n";
      case 9:
        return call();
      case 10:
        return one({"read -r S T <<< \"$T $I\"\n", "IFS=- read -ra M <<< \"$S\"\n", "IFS=, read S T <<< 'q,r s,t'\n"});
      case 11:
        return "P=" + one({"S", "T"}) + "\nexport E=" + value() + "\n" + leave;
      case 12:
        return "if " + condition() + "; then\n" + body(depth) + leave +
               (maybe() ? "elif " + condition() + "; then\n" + body(depth) : "") +
               (maybe() ? "else\n" + body(depth) : "") + "fi" + behind();
      case 13:
        return "case \"$S\" in\n x|llama*) " + body(depth) + ";;\n *[!a-z]*)\n" + body(depth) + ";;\n *) I=1;;\nesac" +
               behind();
      case 14:
        return loop("for x in 1 \"$T\" " + changed() + "; do S=$x\n", depth);
      case 15:
        return counting_loop(depth);
      case 16: {
        const std::string n = "w" + std::to_string(++counters_);
        return n + "=0\n" +
               loop(one({"while [ $" + n + " -lt 3 ]", "until ((" + n + " >= 2))"}) + "; do " + n + "=$((" + n +
                        " + 1))\n",
                    depth);
      }
      case 17: {
        const std::string name = one({"f", "g", "h"});
        if (inside_) return "shift\n";
        inside_ = true;
        const int loops = std::exchange(loops_, 0);
        std::string out = one({name + "() {\n", "function " + name + " {\n"});
        if (maybe()) out += "local " + text() + "=" + value() + " " + integer() + "\n" + "local I=9 J=8 K=1 L=(q)\n";
        out += body(depth);
        if (maybe()) out += condition() + " && return\n";
        if (maybe()) out += "shift\n" + call();
        out += body(depth) + "}\n";
        inside_ = false;
        loops_ = loops;
        return out + name + " " + value() + " \"${L[@]}\" --end\n";
      }
      case 18:
        return "(\n" + body(depth) + ")" + behind();
      case 19:
        return "eval " +
               one({"\"I=\\$((I + 1)); S='q r'\"", "'torchrun $I \"$S\" > log'", "\"torchrun ${#M[@]} --eval\""}) +
               "\n";
      case 20:
        return "set -- " + value() + " --two \"${M[@]}\"\n";
      default:
        return "I=8 torchrun $I\nmkdir -p x && S=made\n{ " + body(depth) + "}" + behind();
    }
  }

  std::string counting_loop(int depth) {
    const std::string n = "n" + std::to_string(++counters_);
    return loop("for ((" + n + "=0; " + n + "<3; " + n + "++)); do\n", depth);
  }

  std::string loop(const std::string& head, int depth) {
    ++loops_;
    std::string out = head + body(depth) + "done" + behind();
    --loops_;
    return out;
  }

  std::mt19937 random_;
  int loops_ = 0, counters_ = 0;
  bool inside_ = false;
};

/// What bash calls torchrun with, script by script.
std::vector<Truth> run_by_bash(const std::vector<std::string>& scripts) {
  std::array<char, 32> folder{"/tmp/pipewright-shell.XXXXXX"};
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string path = std::string(folder.data()) + "/all.sh";
  std::string all =
      "torchrun() { { printf 'C\\n'; printf 'W%s\\0' \"$@\"; } >&3; }\nmkdir() { :; }\nexec 3>&1 >/dev/null 2>&1\ncd " +
      std::string(folder.data()) + "\n";
  for (const auto& script : scripts) all += "(\n" + script + "\nprintf 'E\\n' >&3)\nprintf 'S\\n' >&3\n";
  write_file(path, all);
  std::FILE* pipe =
      popen(("LC_ALL=C timeout " + std::to_string(60 + scripts.size() / 8) + " bash --norc " + path).c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string out;
  std::array<char, 4096> block;
  for (std::size_t got; (got = std::fread(block.data(), 1, block.size(), pipe)) > 0;) out.append(block.data(), got);
  pclose(pipe);
  std::system(("rm -r " + std::string(folder.data())).c_str());  // NOLINT(cert-env33-c)
  std::vector<Truth> result(1);
  for (std::size_t at = 0; at < out.size();) {
    if (out[at] == 'S') {
      result.emplace_back();
      at += 2;
    } else if (out[at] == 'E') {
      result.back().whole = true;
      at += 2;
    } else if (out[at] == 'C') {
      result.back().calls.emplace_back();
      at += 2;
    } else {
      const auto end = out.find('\0', at);
      result.back().calls.back().push_back(out.substr(at + 1, end - at - 1));
      at = end + 1;
    }
  }
  result.pop_back();
  return result;
}

Calls followed(const std::string& script) {
  Calls calls;
  for (const auto& command : emit::run_shell(script, "drawn.sh", {}).commands) {
    if (command.words.front().text != "torchrun") continue;
    calls.emplace_back();
    for (std::size_t i = 1; i < command.words.size(); ++i) calls.back().push_back(command.words[i].text);
    if (calls.back().empty()) calls.back().emplace_back();  // as printf writes it
  }
  return calls;
}

std::string shown(const Calls& calls) {
  std::string text;
  for (const auto& call : calls) {
    for (const auto& word : call) text += "<" + word + "> ";
    text += "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("drawn scripts call what bash calls") {
  const unsigned count = test::draws(400, "PIPEWRIGHT_SHELL_DRAWS");
  const char* first = std::getenv("PIPEWRIGHT_SHELL_SEED");
  const unsigned seed = first != nullptr ? static_cast<unsigned>(std::atoi(first)) : 1;
  std::vector<std::string> scripts;
  for (unsigned i = 0; i < count; ++i) scripts.push_back(Draw(seed + i).script());
  const auto truth = run_by_bash(scripts);
  REQUIRE(truth.size() == scripts.size());
  unsigned judged = 0;
  for (std::size_t i = 0; i < scripts.size(); ++i) {
    CAPTURE(seed + i);
    CAPTURE(scripts[i]);
    const Calls ours = followed(scripts[i]);
    // What is not known stays ${NAME}: no wrong word, and no call too few.
    bool open = !truth[i].whole;
    for (const auto& call : ours)
      for (const auto& word : call) open = open || word.find("${") != std::string::npos;
    judged += !open;
    if (!open) CHECK(shown(ours) == shown(truth[i].calls));
  }
  CHECK(judged > count * 8 / 10);
}

}  // namespace shell_bash_test
