// The report's behaviour: sorting, switching views, and the list and detail of single queries.
// Text from models only ever becomes text nodes and attribute values set through the DOM, never markup.
(() => {
"use strict";
document.documentElement.classList.add("js");

const MARKS = { right: "✓", wrong: "✕", error: "!", unscored: "?", absent: "·" };
const PAGE = 100;

function el(name, props, ...kids) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...kids.flat(9).filter((kid) => kid !== null && kid !== undefined));
  return node;
}

const number = (value) => value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: 2 });
const seconds = (value) => value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 1 }) + " s";
function dollars(value) {
  if (value === null) return "unknown";
  return "$" + value.toLocaleString("en", { maximumSignificantDigits: 3, maximumFractionDigits: 12 });
}
// An SVG element; classes, numbers and text nodes only.
function svg(name, props, ...kids) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, String(value));
  node.append(...kids.flat(9).filter((kid) => kid !== null));
  return node;
}

const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;

// --- the tables and figures that are already there ---------------------------------------------------

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const numeric = column > 0;
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : numeric;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === ""); // the unknown stays at the end either way
        const order = numeric ? Number(x) - Number(y) : x.localeCompare(y);
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

function switchable(choice) {
  const views = [...choice.children];
  const first = Math.max(0, views.findIndex((view) => view.dataset.first));
  const show = (at) => views.forEach((view, i) => { view.hidden = i !== at; });
  const label = choice.dataset.label;
  let control;
  if (views.length <= 3) {
    const buttons = views.map((view, i) => el("button", { type: "button", "aria-pressed": String(i === first), onclick: () => {
      buttons.forEach((button, j) => button.setAttribute("aria-pressed", i === j));
      show(i);
    } }, view.dataset.title));
    control = el("div", { class: "segmented", role: "group", "aria-label": label }, buttons);
  } else {
    control = el("select", { "aria-label": label, onchange: (event) => show(event.target.selectedIndex) },
      views.map((view, i) => el("option", { selected: i === first }, view.dataset.title)));
  }
  choice.prepend(el("div", { class: "choice-bar" }, el("span", { "aria-hidden": "true" }, label), control));
  show(first);
}

function lightUp(run) {
  const marked = [...run.querySelectorAll("[data-recipe]")];
  const light = (name) => marked.forEach((node) => node.classList.toggle("lit", name !== null && node.dataset.recipe === name));
  run.addEventListener("pointerover", (event) => {
    const home = event.target.closest("[data-recipe]");
    light(home && run.contains(home) ? home.dataset.recipe : null);
  });
  run.addEventListener("pointerleave", () => light(null));
}

// --- every query -------------------------------------------------------------------------------------

class Explorer {
  constructor(root) {
    this.root = root;
    this.run = root.dataset.run;
    this.data = null;
    this.find = (css) => root.querySelector(css);
  }

  load() {
    if (this.data) return this;
    this.data = JSON.parse(document.getElementById("data-" + this.run).textContent);
    const { queries, recipes, traces } = this.data;
    this.cells = queries.map(() => recipes.map(() => [])); // query, recipe -> traces, one a sample
    traces.forEach((found, r) => found.forEach((trace) => this.cells[trace.q][r].push(trace)));
    this.words = queries.map((query, q) => this.searchable(query, q));
    this.fillFilters();
    this.filter();
    return this;
  }

  plain(ref) {
    const text = ref === null ? "" : this.data.texts[ref];
    return typeof text === "string" ? text : text[0] + " … " + text[2];
  }

  // A text as nodes; a cut one says in its middle how much is missing.
  text(ref) {
    const text = ref === null ? "" : this.data.texts[ref];
    if (typeof text === "string") return [text];
    return [text[0], el("span", { class: "cut" }, `cut here: ${number(text[1])} characters are not in this file`), text[2]];
  }

  searchable(query, q) {
    const answers = this.cells[q].flat().map((trace) => this.plain(trace.answer));
    return [query.id, query.domain, this.plain(query.ask), ...new Set(answers)].join("\n").toLowerCase();
  }

  outcomeOf(q, r) {
    const found = this.cells[q][r];
    if (!found.length) return "absent";
    return ["error", "wrong", "unscored"].find((kind) => found.some((trace) => trace.outcome === kind)) || "right";
  }

  fillFilters() {
    const { recipes, queries } = this.data;
    const options = (css, pairs) => this.find(css).replaceChildren(...pairs.map(([value, text]) => el("option", { value }, text)));
    options(".f-recipe", [["", "any"], ...recipes.map((name, r) => [r, name])]);
    options(".f-outcome", [["", "any"], ["right", "right"], ["wrong", "wrong"], ["error", "error"], ["unscored", "no verdict"], ["split", "recipes disagree"]]);
    options(".f-domain", [["", "any"], ...[...new Set(queries.map((query) => query.domain))].sort().map((name) => [name, name])]);
    options(".f-order", [["", "as run"], ["hard", "fewest right first"], ["calls", "most calls first"]]);
    for (const css of [".f-recipe", ".f-outcome", ".f-domain", ".f-order"]) this.find(css).addEventListener("change", () => this.filter());
    let waiting;
    this.find(".f-search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => this.filter(), 120); });
    this.find(".more").addEventListener("click", () => this.grow());
    const box = this.find(".list-box");
    box.addEventListener("scroll", () => { if (box.scrollTop + box.clientHeight > box.scrollHeight - 300) this.grow(); });
    this.find(".queries").addEventListener("keydown", (event) => this.walk(event));
  }

  matches(q) {
    const terms = this.find(".f-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const domain = this.find(".f-domain").value;
    if (domain && this.data.queries[q].domain !== domain) return false;
    if (!terms.every((term) => this.words[q].includes(term))) return false;
    const recipe = this.find(".f-recipe").value;
    const wanted = this.find(".f-outcome").value;
    const kinds = this.data.recipes.map((_, r) => this.outcomeOf(q, r));
    if (wanted === "split") return kinds.includes("right") && kinds.includes("wrong");
    const seen = recipe === "" ? kinds : [kinds[Number(recipe)]];
    return wanted ? seen.includes(wanted) : recipe === "" || seen[0] !== "absent";
  }

  filter() {
    const rows = this.data.queries.map((_, q) => q).filter((q) => this.matches(q));
    const order = this.find(".f-order").value;
    const sum = (q, value) => this.cells[q].flat().reduce((total, trace) => total + value(trace), 0);
    if (order === "hard") rows.sort((a, b) => sum(a, (t) => t.outcome === "right") - sum(b, (t) => t.outcome === "right"));
    if (order === "calls") rows.sort((a, b) => sum(b, (t) => t.turns.length) - sum(a, (t) => t.turns.length));
    this.rows = rows;
    this.shown = 0;
    this.find(".queries").replaceChildren();
    this.find(".found").textContent = `${number(rows.length)} of ${plural(this.data.queries.length, "query").replace("querys", "queries")}`;
    this.find(".list-box").scrollTop = 0;
    this.grow();
  }

  grow() {
    const next = this.rows.slice(this.shown, this.shown + PAGE);
    this.find(".queries").append(...next.map((q) => this.listItem(q)));
    this.shown += next.length;
    this.find(".more").hidden = this.shown >= this.rows.length;
  }

  listItem(q) {
    const query = this.data.queries[q];
    const kinds = this.data.recipes.map((name, r) => [name, this.outcomeOf(q, r)]);
    const right = kinds.filter(([, kind]) => kind === "right").length;
    const marks = kinds.map(([name, kind]) => el("span", { class: "mark " + kind, title: `${name}: ${kind}` }, MARKS[kind]));
    const picked = this.find(".f-recipe").value;
    return el("li", {}, el("button", { type: "button", "data-q": q, "aria-current": q === this.open ? "true" : null,
      onclick: () => this.go(q, picked === "" ? null : Number(picked)) },
      el("span", { class: "q-text" }, this.plain(query.ask).slice(0, 300) || query.id),
      el("span", { class: "q-meta" }, el("span", {}, query.domain),
        el("span", { class: "marks", role: "img", "aria-label": `${right} of ${kinds.length} recipes right` }, marks))));
  }

  walk(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const buttons = [...this.root.querySelectorAll(".queries button")];
    const next = buttons[buttons.indexOf(document.activeElement) + step];
    if (next) { next.focus(); event.preventDefault(); }
  }

  go(q, r) {
    const parts = new URLSearchParams({ run: this.run, query: this.data.queries[q].id });
    if (r !== null) parts.set("recipe", this.data.recipes[r]);
    const hash = "#" + parts;
    if (location.hash === hash) this.show(q, r); else location.hash = hash;
  }

  show(q, r) {
    this.open = q;
    while (this.rows.indexOf(q) >= this.shown) this.grow();
    this.root.querySelectorAll(".queries button").forEach((button) => {
      if (Number(button.dataset.q) === q) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
    });
    this.reveal(this.find(".queries [aria-current]"));
    const recipe = r !== null ? r : Math.max(0, this.cells[q].findIndex((found) => found.length));
    const body = el("div", { role: "tabpanel", "aria-label": this.data.recipes[recipe] });
    this.find(".detail").replaceChildren(...this.queryHead(q), this.recipeTabs(q, recipe), body);
    const found = this.cells[q][recipe];
    body.append(...(found.length ? found.map((trace) => this.trace(trace, found.length > 1)) : [el("p", { class: "empty" }, "This recipe has no trace of the query.")]));
  }

  // Scrolls the list only: scrollIntoView would move the page too.
  reveal(item) {
    if (!item) return;
    const box = this.find(".list-box");
    const [inner, outer] = [item.getBoundingClientRect(), box.getBoundingClientRect()];
    if (inner.top < outer.top || inner.bottom > outer.bottom) box.scrollTop += inner.top - outer.top - box.clientHeight / 3;
  }

  queryHead(q) {
    const query = this.data.queries[q];
    const system = query.prompt.filter(([role, ref]) => !(role === "user" && ref === query.ask));
    const extra = [
      query.gold !== null && el("details", { open: true }, el("summary", {}, "Reference (never shown to an agent)"), el("div", { class: "box" }, el("pre", {}, this.text(query.gold)))),
      system.length && el("details", {}, el("summary", {}, "The rest of the prompt"), this.messages(system)),
      query.meta !== null && el("details", {}, el("summary", {}, "Metadata"), el("div", { class: "box" }, el("pre", {}, this.text(query.meta)))),
    ];
    return [
      el("div", { class: "d-head" }, el("h3", {}, query.id), [query.domain, query.task, query.contract].filter((tag, i, all) => tag && all.indexOf(tag) === i).map((tag) => el("span", { class: "tagged" }, tag))),
      el("div", { class: "box" }, el("pre", {}, this.text(query.ask))),
      ...extra.filter(Boolean),
    ];
  }

  recipeTabs(q, selected) {
    const buttons = this.data.recipes.map((name, r) => {
      const kind = this.outcomeOf(q, r);
      return el("button", { type: "button", role: "tab", "aria-selected": String(r === selected), tabindex: r === selected ? 0 : -1, onclick: () => this.go(q, r) },
        el("span", { class: "mark " + kind, "aria-label": kind }, MARKS[kind]), name);
    });
    return el("div", { class: "recipes", role: "tablist", "aria-label": "Recipe", onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      this.keepFocus = true;
      this.go(q, (selected + step + buttons.length) % buttons.length);
      event.preventDefault();
    } }, buttons);
  }

  verdict(score, outcome) {
    const kind = outcome || (score ? { pass: "right", fail: "wrong", error: "error" }[score[0]] : "unscored");
    const partial = score && score[1] !== null && score[1] !== 0 && score[1] !== 1 ? ` · ${number(score[1])}` : "";
    const word = kind === "unscored" ? "no verdict" : kind;
    return el("span", { class: "verdict " + kind }, `${MARKS[kind]} ${word}${partial}`);
  }

  trace(trace, several) {
    const calls = trace.turns.length + trace.failures.length;
    const asked = new Set([...trace.turns.map((turn) => turn.agent), ...trace.failures.map((failure) => failure[0])]);
    const steps = [];
    for (let at = 0; at <= trace.turns.length; at++) {
      steps.push(...trace.routings.filter((routing) => routing.after === at).map((routing) => this.routing(routing, asked)));
      if (at < trace.turns.length) steps.push(this.turn(trace.turns[at], at, at === trace.final, trace.reviews.find(([turn]) => turn === at)));
    }
    steps.push(...trace.failures.map((failure) => this.failure(failure)));
    return el("section", {},
      several && el("h3", {}, `Sample ${trace.sample}`) || null,
      el("div", { class: "d-head" }, this.verdict(trace.score, trace.outcome),
        el("span", {}, "Answer ", el("b", {}, trace.answer === null ? "none" : this.plain(trace.answer).slice(0, 400)))),
      this.reason(trace.score),
      this.facts([["", number(calls), calls === 1 ? "call" : "calls"], ["", number(trace.tokens), "tokens"], [trace.cost === null ? "cost" : "", dollars(trace.cost), ""],
        ["", seconds(trace.seconds), ""], trace.stopped !== "done" && ["ended:", trace.stopped, ""],
        trace.degraded !== null && ["degraded:", this.plain(trace.degraded), ""]]),
      this.picture(trace),
      el("h3", {}, "What happened"), ...steps);
  }

  // The layers of a mixture: a column a step, a box a turn, a line from each answer to those that read it.
  picture(trace) {
    const turns = trace.turns;
    if (!turns.some((turn) => turn.layer)) return null;
    const columns = [];
    turns.forEach((turn, i) => {
      const last = columns[columns.length - 1];
      if (last && last.layer === turn.layer && last.part === turn.part) last.turns.push(i);
      else columns.push({ layer: turn.layer, part: turn.part, turns: [i] });
    });
    const [stepX, stepY, wide, high] = [168, 46, 132, 34];
    const helps = (part) => ["reviewer", "critic"].includes(part); // below the others, out of the way of their lines
    const rows = Math.max(...columns.map((column) => helps(column.part) ? 0 : column.turns.length));
    const at = new Map();
    columns.forEach((column, c) => column.turns.forEach((i, r) => at.set(i, [c * stepX + 4, (r + (helps(column.part) ? rows : 0)) * stepY + 26])));
    const scores = new Map(trace.reviews.map(([turn, score]) => [turn, score]));
    const lines = turns.flatMap((turn, i) => helps(turn.part) ? [] : turn.reads.map((read) => {
      const [[x1, y1], [x2, y2]] = [at.get(read), at.get(i)];
      const from = x1 + wide;
      return svg("path", { class: "read", d: `M${from} ${y1 + high / 2}C${from + 30} ${y1 + high / 2} ${x2 - 30} ${y2 + high / 2} ${x2} ${y2 + high / 2}` });
    }));
    const boxes = turns.map((turn, i) => {
      const [x, y] = at.get(i);
      const kind = turn.score ? { pass: "right", fail: "wrong", error: "error" }[turn.score[0]] : "unscored";
      const name = this.plain(turn.agent);
      const score = scores.has(i) ? ` · ${number(scores.get(i))}` : "";
      const words = `#${i} ${name.length > 12 ? name.slice(0, 11) + "…" : name}${score}`;
      const told = [`#${i} ${name}`, turn.part, turn.reads.length ? "read " + turn.reads.map((read) => "#" + read).join(", ") : ""].filter(Boolean).join(", ");
      return svg("g", { class: `box-${kind}${i === trace.final ? " final" : ""}` }, svg("title", {}, told),
        svg("rect", { x, y, width: wide, height: high, rx: 6 }), svg("text", { x: x + 8, y: y + 21 }, words));
    });
    const heads = columns.map((column, c) => svg("text", { class: "head", x: c * stepX + 4, y: 14 }, `${column.layer ? "layer " + column.layer + " " : ""}${column.part}`));
    const size = [columns.length * stepX, Math.max(...[...at.values()].map(([, y]) => y)) + stepY];
    return el("div", { class: "scroll layers", tabindex: 0 }, svg("svg", { width: size[0], height: size[1], role: "img", "aria-label": "Who proposed, with which score, and who read what" }, heads, lines, boxes));
  }

  // Facts as [what stands before, the value, what stands after].
  facts(parts) {
    return el("p", { class: "facts" }, parts.filter(Boolean).map(([before, value, after]) =>
      el("span", {}, before && before + " ", el("b", {}, value), after && " " + after)));
  }

  reason(score) {
    if (!score || score[3] === null) return null;
    return el("p", { class: "reason" }, "Verifier: ", this.plain(score[3]).slice(0, 2000));
  }

  routing(routing, asked) {
    const scored = routing.weights.some((weight) => weight[2] !== null);
    const top = Math.max(...routing.weights.map((weight) => weight[1] || 0), 1e-9);
    const rows = routing.weights.map(([agent, weight, score, reads]) => [
      el("span", { class: asked.has(agent) ? "name asked" : "name" }, this.plain(agent)),
      el("span", { class: "track" }, this.barOf((weight || 0) / top)),
      el("span", { class: "num" }, weight === null ? "–" : (100 * weight).toFixed(1) + " %"),
      el("span", { class: "num" }, [score === null ? "" : "score " + Number(score.toPrecision(3)), reads.length ? " reads " + reads.map((i) => "#" + i).join(", ") : ""].join(" ").trim()),
    ]);
    return el("div", { class: "step routing" },
      el("div", { class: "d-head" }, el("b", {}, routing.stop ? "Routing: stop" : "Routing"),
        el("span", { class: "tagged" }, routing.after ? `after ${plural(routing.after, "turn")}` : "at the beginning"),
        el("span", { class: "tagged" }, scored ? "weight and raw score; asked agents in bold" : "weight; asked agents in bold")),
      el("div", { class: "weights" }, rows),
      routing.more ? el("p", { class: "note" }, `and ${plural(routing.more, "agent")} with less weight`) : null,
      routing.info === null ? null : el("details", {}, el("summary", {}, "What the router noted"), el("div", { class: "box" }, el("pre", {}, this.text(routing.info)))));
  }

  barOf(share) {
    const bar = el("i");
    bar.style.width = (100 * share).toFixed(1) + "%";
    return bar;
  }

  turn(turn, index, settled, review) {
    const cost = turn.cost === null ? null : dollars(turn.cost);
    return el("div", { class: settled ? "step settled" : "step" },
      el("div", { class: "d-head" }, el("span", { class: "tagged" }, "#" + index), el("b", {}, this.plain(turn.agent)),
        turn.role === "solver" || turn.role === turn.part ? null : el("span", { class: "tagged" }, turn.role),
        turn.part ? el("span", { class: "tagged" }, `layer ${turn.layer}, ${turn.part}`) : null,
        turn.reads.length ? el("span", { class: "tagged" }, "read " + turn.reads.map((i) => "#" + i).join(", ")) : null,
        review ? el("span", { class: "tagged" }, `scored ${number(review[1])}${review[3] ? ` (${review[3]})` : ""}`) : null,
        this.verdict(turn.score),
        settled ? el("span", { class: "settled-badge" }, "settled the answer") : null),
      el("div", { class: "box" }, el("span", { class: "who" }, "Completion"), el("pre", {}, this.text(turn.text))),
      this.facts([["extracted", turn.answer === null ? "no answer" : this.plain(turn.answer).slice(0, 400), ""],
        ["", `${number(turn.in)} + ${number(turn.out)}`, turn.estimated ? "tokens (estimated)" : "tokens"], ["", seconds(turn.seconds), ""], cost && ["", cost, ""],
        turn.finish === "length" && ["", "cut off", "at the token limit"], this.plain(turn.rev) && ["revision", this.plain(turn.rev).slice(0, 12), ""]]),
      this.reason(turn.score),
      review && review[2] !== null ? el("p", { class: "reason" }, "Reviewer: ", this.plain(review[2]).slice(0, 2000)) : null,
      el("details", {}, el("summary", {}, `Messages sent (${turn.sent.length})`), this.messages(turn.sent)));
  }

  failure([agent, kind, message]) {
    return el("div", { class: "step failed" },
      el("div", { class: "d-head" }, el("b", {}, this.plain(agent)), el("span", { class: "verdict error" }, "! " + this.plain(kind))),
      el("div", { class: "box" }, el("pre", {}, this.text(message))));
  }

  messages(messages) {
    return messages.map(([role, ref]) => el("div", { class: "box" }, el("span", { class: "who" }, role), el("pre", {}, this.text(ref))));
  }
}

// --- the address: #run=0&query=ID&recipe=NAME --------------------------------------------------------

const runs = [...document.querySelectorAll(".run")];
// A sheet has no queries to explore.
const explorers = runs.map((run) => run.querySelector(".explorer")).map((root) => root && new Explorer(root));

function follow(first) {
  const parts = new URLSearchParams(location.hash.slice(1));
  const at = Math.min(Math.max(Number(parts.get("run")) || 0, 0), runs.length - 1);
  runs.forEach((run, i) => { run.hidden = i !== at; });
  document.querySelectorAll(".tabs a").forEach((tab, i) => { if (i === at) tab.setAttribute("aria-current", "page"); else tab.removeAttribute("aria-current"); });
  if (at < 0 || !explorers[at]) return;
  const explorer = explorers[at].load();
  const q = parts.has("query") ? explorer.data.queries.findIndex((query) => query.id === parts.get("query")) : -1;
  if (q < 0) return;
  const r = explorer.data.recipes.indexOf(parts.get("recipe"));
  explorer.show(q, r < 0 ? null : r);
  if (explorer.keepFocus) {
    explorer.keepFocus = false;
    explorer.find("[role=tab][aria-selected=true]").focus();
  } else if (first || explorer.find(".detail").getBoundingClientRect().top > innerHeight - 120) {
    explorer.root.scrollIntoView();
    if (!first) explorer.find(".detail").scrollIntoView();
  }
}

document.querySelectorAll("table.headline").forEach(sortable);
document.querySelectorAll(".choice").forEach(switchable);
runs.forEach(lightUp);
addEventListener("hashchange", () => follow(false));
if (runs.length) follow(true);
})();
