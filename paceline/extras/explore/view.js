// The page: sliders, whose state is the URL's fragment, and what follows from them. See law.js.

const make = (space) => (name, attributes = {}, ...children) => {
  const made = document.createElementNS(`http://www.w3.org/${space}`, name);
  for (const [key, value] of Object.entries(attributes))
    if (key === "colour") made.style.setProperty("--mine", value);
    else made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const html = make("1999/xhtml"), svg = make("2000/svg"), $ = (id) => document.getElementById(id);
const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};
const digits = (value) => String(Number(value.toPrecision(3)));
const inUnits = (units) => (value) => {
  const [size, name] = units.find(([size, , from = size]) => value >= 0.9995 * from) ?? units.at(-1);
  return `${digits(value / size)} ${name}`;
};
const seconds = inUnits([[3600, "h", 7200], [60, "min", 120], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]]);
const rate = inUnits([[1.25e11, "Tbit/s"], [1.25e8, "Gbit/s"], [1.25e5, "Mbit/s"], [125, "kbit/s"]]);
const bytes = inUnits([[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]);

function show(data) {
  const [latency, bandwidth] = data.link, [price, currency] = data.price, n = data.workers;
  const reached = data.target && `${data.target.metric.replaceAll("_", " ")} ${data.target.value}`;
  const money = (amount) => (currency === "$" ? "$" : `${currency} `) + digits(amount);
  for (const key in data.durations) data.durations[key] = unpack(data.durations[key]);
  const exact = data.schemes.filter((each) => !each.grid), onGrid = ["bandwidth", "latency", "price"];
  // Key, label, value at the factor 1, range of its logarithm, unit, and values with real runs (docs/validation.md).
  const SLIDERS = [
    ["bandwidth", `Bandwidth between ${data.between}`, bandwidth, -2, 2, rate, [1.25e7, 5e7]],
    ["latency", `Latency between ${data.between}`, latency, -2, 2, seconds, [0.002, 0.05]],
    ["compute", "Time of a gradient", data.compute_s, -2, 2, seconds],
    ["straggler", "Slowdown of worker 0", 1, 0, 1.5, (slowdown) => `factor ${digits(slowdown)}`],
    ["payload", "Bytes of the model", data.payload_bytes, Math.log10(data.least_payload), +(data.least_payload < 1), bytes],
    ["price", "Price of a worker for an hour", reached && price, -3, 3, money],
  ].filter(([key, , base, low, high]) => base && high > low && (exact.length || onGrid.includes(key)));
  const axes = SLIDERS.filter(([key]) => key !== "price"), inputs = {};
  const factor = (key) => (inputs[key] ? 10 ** (inputs[key].value / 100) : 1);
  const factors = ["bandwidth", "latency", "compute", "straggler", "payload"];
  const setting = () => Object.fromEntries(factors.map((key) => [key, factor(key)]));
  for (const [key, label, , low, high] of SLIDERS) {
    inputs[key] = html("input", { type: "range", id: key, min: Math.ceil(100 * low), max: 100 * high, value: 0 });
    $("sliders").append(html("label", { for: key }, label, html("output", { id: `${key}-is`, for: key })), inputs[key]);
  }
  ["across", "up"].forEach((id, place) => {
    inputs[id] = $(id);
    $(id).append(...axes.map(([, label], number) => html("option", { value: number }, label)));
    $(id).value = Math.min(place, axes.length - 1);
  });
  for (const name in data.clusters) $("clusters").append(html("option", {}, name));
  const initial = Object.fromEntries(Object.entries(inputs).map(([key, input]) => [key, input.value]));

  const tookOf = (times, met, step) => (!data.target ? step : met === null ? Infinity : times[met]);

  function priced(setting) {
    const law = lawOf(data, setting);
    return shownAt(setting).map((scheme) => {
      if (scheme.grid) return interpolated(scheme, stepOf(scheme.grid, setting));
      const names = law.choose(scheme.steady);
      const runs = law.scored(scheme, names).map(({ times, computed, end }, number) => {
        const { steps, met } = scheme.runs[number], step = end / steps.length;
        return { times, took: tookOf(times, met, step), step, end, busy: computed / (n * end), count: steps.length };
      });
      return { ...scheme, names, priced: runs, took: median(runs.map((run) => run.took)) };
    });
  }

  // Grids are of links alone: what they interpolate is not shown where computing or the payload has another factor.
  const shownAt = (setting) =>
    factors.every((key) => onGrid.includes(key) || setting[key] === 1) ? data.schemes : exact;

  function interpolated(scheme, factor) {
    const runs = scheme.runs.map(({ steps, step_s, computed_s, scores, met }) => {
      const step = factor * step_s, times = timesOf(scores, (done) => (done / n) * step, factor * scheme.later_s);
      const took = tookOf(times, met, step), busy = Math.min(computed_s / step, 1);
      return { times, took, step, end: steps * step, busy, count: steps };
    });
    return { ...scheme, names: {}, priced: runs, took: median(runs.map((run) => run.took)) };
  }
  const marked = ({ grid, label }) => (grid ? `\u2248 ${label}` : label);
  const raced = (schemes) => race(schemes.map((each) => each.priced.map((run) => run.took)), data.race);
  const ranked = (schemes) => raced(schemes).order.map((place) => schemes[place]);

  function verdict(schemes) {
    const { order, second: place, factor: ratio, settled, tie } = raced(schemes);
    const first = schemes[order[0]], second = schemes[place], repeats = first.priced.length;
    if (first.took === Infinity) return `No scheme reaches ${reached} in most repeats.`;
    const does = reached ? `reaches ${reached} first: after` : "has the shortest step:";
    const alone = `${first.label} ${does} ${seconds(first.took)}.`;
    if (!second || second.took === Infinity) return alone;
    const ahead = first.priced.filter((run, number) => run.took < second.priced[number].took).length;
    const often = ahead % repeats ? `${first.label} is ahead in ${ahead} of ${repeats} repeats` : "";
    if (settled) return `${alone} ${second.label} takes ${digits(ratio)} times as long${often && `; ${often}`}.`;
    const both = `${first.label} ${tie ? "and" : "or"} ${second.label}`;
    const medians = `${seconds(first.took)} and ${seconds(second.took)} in the median${often && `; ${often}`}`;
    return tie ? `${both} tie: ${medians}.` : `Not settled: ${both}, ${medians}.`;
  }

  function table(schemes) {
    const rent = (n * price * factor("price")) / 3600;
    const cost = ({ priced, runs, took }) => {
      const each = priced.map((run, number) => run.took * rent + runs[number].egress * factor("payload"));
      return took < Infinity ? money(median(each)) : "-";
    };
    const cell = (name, ...content) => html("td", { "data-name": name }, html("div", {}, ...content));
    const time = (took, steps) => (took < Infinity ? seconds(took) : `not in ${steps} steps`);
    $("rows").replaceChildren(...schemes.map((each) => html("tr", {},
      html("th", { scope: "row", class: "mine", colour: each.colour }, marked(each)),
      ...(reached ? [cell(`Time to ${reached}`, time(each.took, each.priced[0].count))] : []),
      cell("Step", seconds(median(each.priced.map((run) => run.step)))),
      cell("Computing", `${Math.round(100 * median(each.priced.map((run) => run.busy)))} %`),
      ...(reached ? [cell("Cost", cost(each))] : []),
      cell("Algorithm", Object.values(each.names).join(", ").replaceAll("_", " ") || "-"))));
    const names = ["Scheme", ...[...$("rows").querySelectorAll("tr:first-child td")].map((each) => each.dataset.name)];
    $("head").replaceChildren(...names.map((name, place) => html("th", { scope: "col", class: place ? "" : "left" }, name)));
  }

  function chart(schemes) {
    const scored = data.schemes[0].runs[0].scores[0]?.[1] ?? {};
    const metric = ["train_loss", data.target?.metric].find((name) => name in scored);
    $("curves").hidden = !metric;
    if (!metric) return;
    const ends = schemes.flatMap((each) => each.priced.map((run) => run.end));
    const starts = schemes.flatMap((each) => each.priced.map((run) => run.times[1] ?? run.end));
    const low = Math.log(Math.min(...starts)), high = Math.log(Math.max(...ends));
    const at = (share) => Math.exp(low + share * (high - low)), x = (share) => 90 + 540 * share;
    const bands = schemes.map((each) => {
      const end = median(each.priced.map((run) => run.end)), points = [];
      for (let share = 0; share <= 1.0001 && at(share) <= end * 1.0001; share += 0.01) {
        const values = each.priced.map((run, place) => {
          const { scores } = each.runs[place], after = run.times.findIndex((time) => time > at(share));
          const [from, to] = [scores.at(after < 0 ? -1 : after - 1)[1][metric], scores.at(after)[1][metric]];
          const passed = (at(share) - run.times[after - 1]) / (run.times[after] - run.times[after - 1]);
          return after < 0 || from === null || to === null ? from : from + passed * (to - from);
        }).filter((value) => value !== null);
        if (values.length) points.push([x(share), median(values), Math.min(...values), Math.max(...values)]);
      }
      return { each, points };
    });
    const all = bands.flatMap(({ points }) => points.flatMap((point) => point.slice(2)));
    const [bottom, top] = [Math.min(...all), Math.max(...all)];
    const y = (value) => 270 - (250 * (value - bottom)) / (top - bottom || 1);
    const line = (points, column) => points.map((point) => `${point[0].toFixed(1)},${y(point[column]).toFixed(1)}`);
    $("curves-svg").replaceChildren(
      svg("path", { class: "axis", d: "M90 20V270H630" }),
      ...ticks((share) => digits(bottom + share * (top - bottom)), (share) => seconds(at(share))),
      ...bands.flatMap(({ each: { colour }, points }) => [
        svg("polygon", { class: "band", colour, points: [...line(points, 2), ...line(points, 3).reverse()].join(" ") }),
        svg("polyline", { class: "curve", colour, points: line(points, 1).join(" ") }),
      ]));
    $("curves-caption").textContent = `${metric.replaceAll("_", " ")} by wall clock (logarithmic): median and range`
      + ` of ${data.repeats} repeats.`;
  }

  // Three labels of each axis of a picture.
  function ticks(up, across) {
    const at = (x, y, anchor, label) => svg("text", { x, y, "text-anchor": anchor }, label);
    return [0, 0.5, 1].flatMap((share, place) => [at(84, 270 - 240 * share, "end", up(share)),
      at(90 + 540 * share, 292, ["start", "middle", "end"][place], across(share))]);
  }

  // Longer work is done in pieces, and stops when a slider moves.
  let latest = 0;
  async function pause(mine) {
    await new Promise((go) => setTimeout(go));
    if (mine !== latest) throw mine;
  }

  async function along(mine) {
    const [, , base, low, high, unit] = SLIDERS.find(([key]) => key === "bandwidth") ?? [];
    $("along").textContent = "";
    if (!base) return;
    const leader = async (log) => {
      await pause(mine);
      return ranked(priced({ ...setting(), bandwidth: 10 ** log }))[0].label;
    };
    const parts = [[await leader(low), low]];
    for (let log = low + 0.2; log < high + 0.1; log += 0.2) {
      const label = await leader(log);
      if (label === parts.at(-1)[0]) continue;
      let [below, above] = [log - 0.2, log];
      while (above - below > 0.002) {
        const middle = (below + above) / 2;
        if ((await leader(middle)) === parts.at(-1)[0]) below = middle;
        else above = middle;
      }
      parts.push([label, above]);
    }
    const value = (log) => unit(base * 10 ** log);
    const who = parts.map(([label, from], place) => (place ? `from ${value(from)} on ${label}` : label)).join(", ");
    $("along").textContent = `First by bandwidth, from ${value(low)} to ${value(high)}, the rest as set: ${who}.`;
  }

  async function map(mine) {
    const [across, up] = [axes[$("across").value], axes[$("up").value]], [columns, rows] = [11, 9];
    const place = ([, , , low, high], count, number) => low + ((high - low) * (number + 0.5)) / count;
    const share = (log, [, , , low, high]) => Math.min(Math.max((log - low) / (high - low), 0), 1);
    const x = (log) => 90 + 540 * share(log, across), y = (log) => 270 - 250 * share(log, up);
    const tick = ([, , base, low, high, unit]) => (share) => unit(base * 10 ** (low + share * (high - low)));
    const seen = ([, , base, , , , range]) => (range ?? [0, Infinity]).map((value) => Math.log10(value / base));
    const drawn = svg("g"), counts = new Map(), [[left, right], [bottom, top]] = [seen(across), seen(up)];
    $("map-svg").replaceChildren(drawn, ...ticks(tick(up), tick(across)),
      svg("path", { class: "seen", d: `M${x(left)} ${y(bottom)}H${x(right)}V${y(top)}H${x(left)}Z` }),
      svg("circle", { class: "here", cx: x(Math.log10(factor(across[0]))), cy: y(Math.log10(factor(up[0]))), r: 7 }));
    for (let cell = 0; cell < columns * rows; cell++) {
      await pause(mine);
      const [i, j] = [cell % columns, Math.floor(cell / columns)];
      const there = { [up[0]]: 10 ** place(up, rows, j), [across[0]]: 10 ** place(across, columns, i) };
      const [first, second] = ranked(priced({ ...setting(), ...there }));
      counts.set(first.label, (counts.get(first.label) ?? 0) + 1);
      const close = second && second.took < 1.1 * first.took ? "close" : "clear";
      const size = { width: 540 / columns + 0.5, height: 250 / rows + 0.5 };
      const at = { x: 90 + (540 * i) / columns, y: 270 - (250 * (j + 1)) / rows };
      drawn.append(svg("rect", { class: close, colour: first.colour, ...at, ...size }));
    }
    const who = [...counts].map(([label, count]) => `${label} in ${count}`).join(", ");
    $("map-caption").textContent = "Circle: you are here. Pale: the second takes less than 1.1 times as long. Dashed:"
      + ` predictions were compared with real runs here. Of ${columns * rows} settings: ${who}.`;
  }

  function update() {
    const mine = ++latest;
    for (const [key, , base, , , unit] of SLIDERS) {
      $(`${key}-is`).value = unit(base * factor(key));
      inputs[key].setAttribute("aria-valuetext", $(`${key}-is`).value);
    }
    const schemes = priced(setting()), gone = data.schemes.length - schemes.length;
    $("gone").textContent = gone ? `${data.schemes.filter((each) => each.grid).map(marked).join(", ")}: not shown,`
      + " since interpolated by bandwidth and latency alone; reset the other sliders to see more." : "";
    $("verdict").textContent = verdict(schemes);
    table(ranked(schemes));
    chart(schemes);
    setTimeout(async () => {
      if (mine !== latest || schemes.every((each) => each.took === Infinity)) return;
      const changed = Object.keys(inputs).filter((key) => inputs[key].value !== initial[key]);
      history.replaceState(null, "", `#${changed.map((key) => `${key}=${inputs[key].value}`).join("&")}`);
      await along(mine).then(() => map(mine)).catch((stopped) => { if (stopped !== mine) throw stopped; });
    }, 150);
  }

  function read() {
    for (const [key, input] of Object.entries(inputs)) {
      const value = new RegExp(`[#&]${key}=(-?[0-9]{1,3})(?=&|$)`).exec(location.hash)?.[1] ?? initial[key];
      if (input.type === "range" || axes[value]) input.value = value;
    }
    update();
  }

  for (const input of Object.values(inputs)) input.addEventListener("input", update);
  $("clusters").addEventListener("change", ({ target }) => {
    (data.clusters[target.value] ?? []).forEach((value, place) => {
      const [key, base] = [["latency", latency], ["bandwidth", bandwidth]][place];
      if (inputs[key] && value) inputs[key].value = Math.round(100 * Math.log10(value / base));
    });
    update();
  });
  addEventListener("hashchange", read);
  $("legend").append(...data.schemes.map((each) => html("li", { class: "mine", colour: each.colour }, marked(each))));
  read();
}

new Response(new Blob([binary($("data").textContent)]).stream().pipeThrough(new DecompressionStream("deflate"))).json().then(show);
