/* Should the circuit be believed? Each test with its number, what that is by chance or at most, and what it means. */

const VERDICTS = { true: ["pass", "passed"], false: ["fail", "failed"], null: ["none", "not made"] };

function drawVerdict(data) {
  const { verdict } = data;
  byId("verdict-card").hidden = !verdict;
  if (!verdict) return;
  byId("verdict-said").textContent = verdict.sentence;
  const figure = (label, value) => element("dd", { class: "figure" }, element("span", {}, label), number(value));
  byId("checks").replaceChildren(...verdict.checks.map((check) => {
    const [kind, word] = VERDICTS[check.passed];
    return element("div", { class: "testrow", id: `check-${check.name}` },
      element("dt", {}, element("i", { class: `sign ${kind}` }, word), element("b", {}, check.question), element("span", {}, check.name)),
      figure("result", check.value), figure("by chance, or limit", check.null), element("dd", { class: "told" }, check.about));
  }));
  byId("verdict-note").replaceChildren(verdict.note, verdict.command ? element("code", {}, verdict.command) : "");
}
