// The law of sim/drivers/lockstep and sim/collectives/pricing, on the tables of export.py, under a
// setting of factors: latency, bandwidth, payload, compute, and straggler (of worker 0). Times are in seconds.

const binary = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const unpack = (text) => new Float64Array(binary(text).buffer);

// Factor on a scheme's step, bilinear in the logarithms: interpolate() of interpolation.py.
function stepOf({ axes, logs }, setting) {
  const [[i, p], [j, q]] = ["latency", "bandwidth"].map((key, axis) => {
    const points = axes[axis], cells = points.length - 1;
    if (!cells) return [0, 0];
    const place = Math.min(Math.max((Math.log10(setting[key]) - points[0]) / (points[1] - points[0]), 0), cells);
    const cell = Math.min(Math.floor(place), cells - 1);
    return [cell, place - cell];
  });
  const row = (a) => logs[a][j] + (q && q * (logs[a][j + 1] - logs[a][j]));
  return Math.exp(row(i) + (p && p * (row(i + 1) - row(i))));
}

// When a run's scores are there: after so many published models, and the seconds of the hand-over for the mean model.
const timesOf = (scores, after, handOver) => scores.map(([done]) => (done ? after(done) + handOver : 0));

function lawOf(data, setting) {
  const { pairs, workers: n } = data, known = new Map();
  const latency = data.costs.map(([fixed, scaled]) => fixed + scaled * setting.latency);
  const perByte = data.costs.map(([, , fixed, scaled]) => Math.max(fixed, scaled / setting.bandwidth));

  // When each rank of a collective is through with an algorithm, by the times at which the ranks join.
  function completion({ plain }, { layout, hosts }, joined) {
    const { nodes, piece_bytes: sizes, rendezvous, tail } = data.layouts[layout];
    const overhead = data.overhead_s[rendezvous ? 0 : 1], announcements = rendezvous ? data.announcements[0] : 0;
    const at = joined.map((time) => time + data.launch_s), done = at.slice();
    const first = [], last = [], firstCame = [], lastCame = [];
    let longest = 0;
    for (const node of nodes) {
      if (node.length === 4) {
        const [post, rank, before, ends] = node;
        at[post] = ends.reduce((time, [block, comes]) => Math.max(time, (comes ? lastCame : last)[block]), at[before]);
        done[rank] = Math.max(done[rank], at[post]);
        continue;
      }
      const [source, destination, offered, posted, pieces, after, behind] = node;
      const a = hosts[source], b = hosts[destination], cost = pairs[a][b], hop = latency[cost];
      const piece = sizes[last.length] * (plain ? 1 : setting.payload) * perByte[cost];
      let begin = Math.max(at[offered], at[posted] + announcements * latency[pairs[b][a]]), end = begin;
      for (const block of after) {
        begin = Math.max(begin, firstCame[block]);
        end = Math.max(end, lastCame[block]);
      }
      begin = behind.reduce((time, block) => Math.max(time, last[block]), begin + overhead);
      const left = Math.max(begin + pieces * piece, after.length ? end + overhead + piece : -Infinity);
      firstCame.push(begin + piece + hop);
      last.push(left);
      lastCame.push(left + hop);
      longest = Math.max(longest, hop);
      done[source] = Math.max(done[source], left);
      done[destination] = Math.max(done[destination], left + hop);
    }
    return done.map((time) => time + tail * longest);
  }

  function together(row, of) {
    if (!known.has(of)) known.set(of, completion(row, of, of.hosts.map(() => 0)));
    return known.get(of);
  }

  function byPrice(row) {
    const prices = Object.values(row.of).map((of) => Math.max(...together(row, of)));
    return Object.keys(row.of)[prices.indexOf(Math.min(...prices))];
  }

  function collective(row, of, now, end) {
    const latest = Math.max(...of.hosts.map((host) => now[host]));
    const late = of.hosts.some((host) => now[host] !== latest);
    const done = late ? completion(row, of, of.hosts.map((host) => now[host] - latest)) : together(row, of);
    of.hosts.forEach((host, rank) => { end[host] = latest + (row.root ? done[rank] : Math.max(done[rank], 0)); });
  }

  function mix([bytes, sources], now) {
    const end = now.slice();
    sources.forEach((senders, i) => senders.forEach((j) => {
      const announced = now[i] + data.announcements[1] * latency[pairs[i][j]];
      const left = Math.max(now[j], announced) + data.overhead_s[1] + bytes * setting.payload * perByte[pairs[j][i]];
      end[j] = Math.max(end[j], left);
      end[i] = Math.max(end[i], left + latency[pairs[j][i]]);
    }));
    return end;
  }

  // Times at which each worker publishes each step, side by side; and the seconds that all workers compute.
  function run(steps, durations, names) {
    const published = new Float64Array(steps.length * n);
    let now = new Array(n).fill(0), begun = now, gradients = 0, computed = 0;
    const pass = (seconds) => {
      now = now.map((time, rank) => time + seconds(rank));
      for (let rank = 0; rank < n; rank++) computed += seconds(rank);
    };
    steps.forEach((number, step) => {
      for (const [kind, what] of data.steps[number]) {
        if (kind === "gradient") {
          const row = durations.length > n ? n * gradients++ : 0;
          pass((rank) => durations[row + rank] * setting.compute * (rank ? 1 : setting.straggler));
        } else if (kind === "encode") pass((rank) => what[rank] * setting.payload);
        else if (kind === "pass") pass(() => what);
        else if (kind === "mix") now = mix(data.mixes[what], now);
        else if (kind === "start") begun = mix(data.mixes[what], now);
        else if (kind === "wait") now = now.map((time, rank) => Math.max(time, begun[rank]));
        else {
          const end = now.slice();
          for (const row of what.map((place) => data.collectives[place]))
            collective(row, row.of[row.what && (names[row.what] ?? byPrice(row))], now, end);
          now = end;
        }
      }
      published.set(now, step * n);
    });
    return { published, computed, end: Math.max(...now) };
  }

  // A scheme's algorithms by its shortest cycle with nothing random, as in sim/experiments/choice.py.
  function choose({ steps, durations, tries }) {
    const used = steps.flatMap((number) => data.steps[number]).filter(([kind]) => kind === "collectives")
      .flatMap(([, places]) => places).map((place) => data.collectives[place]).filter((row) => row.what);
    let names = {}, best = Infinity;
    const trial = (tried) => {
      const [one, three] = [steps.length / 3, steps.length].map((end) => run(steps.slice(0, end), durations, tried).end);
      if ((three - one) / 2 < best * (1 - 1e-9)) [names, best] = [tried, (three - one) / 2];
    };
    if (tries) trial(names);
    for (const what of new Set(used.map((row) => row.what))) {
      const own = used.filter((row) => row.what === what), prices = new Set(own.map(byPrice));
      if (prices.size === 1) names = { ...names, [what]: [...prices][0] };
      for (const name of tries ? Object.keys(own[0].of) : [])
        if (name !== names[what]) trial({ ...names, [what]: name });
    }
    return names;
  }

  // Runs of a recorded scheme, with the times of their scores; an all-reduce hands the mean model over.
  function scored({ later, runs }, names) {
    const handOver = later === null ? 0 : run([later], [], names).end;
    return runs.map(({ steps, durations, scores }) => {
      const priced = run(steps, data.durations[durations], names), order = priced.published.slice().sort();
      return { ...priced, times: timesOf(scores, (done) => order[done - 1], handOver) };
    });
  }

  return { run, choose, scored };
}

// The race of schemes by their times, an array of repeats each, as in sim/records/verdict.py: places in order,
// the one to compare the first with, the factor between them and whether the order is settled or a tie.
function race(times, { fewest, place, beyond, tied, exact }) {
  const middle = (sorted, mean) => {
    const [left, right] = [sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]];
    return left === right ? left : mean(left, right);
  };
  const ascending = (values) => [...values].sort((a, b) => a - b);
  const took = times.map((each) => middle(ascending(each), (left, right) => (left + right) / 2));
  const ratios = (a, b) => ascending(times[b].map((above, seed) =>
    above === times[a][seed] ? 1 : times[a][seed] ? above / times[a][seed] : Infinity));
  const between = (weight) => (outer, inner) =>
    !weight || outer === inner || !(outer && inner && Number.isFinite(outer * inner)) ? outer : outer * (inner / outer) ** weight;
  const factor = (a, b) => middle(ratios(a, b), (left, right) => (left ? left * Math.sqrt(right / left) : right === Infinity ? 1 : 0));
  function ends(a, b) {
    const all = ratios(a, b), n = all.length;
    if (exact) return [factor(a, b), factor(a, b)];
    if (n < fewest) return [all[0] > beyond ? all[0] : 0, Infinity];
    const [rank, weight] = place, bound = between(weight);
    return [bound(all[rank - 1], all[rank]), bound(all[n - rank], all[n - rank - 1])];
  }
  const by = (value) => (a, b) => (value(a) === value(b) ? 0 : value(a) - value(b));
  const order = took.map((_, number) => number).sort(by((number) => took[number]));
  const arrived = order.filter((number) => took[number] < Infinity);
  const unbeaten = arrived.filter((a) => !arrived.some((b) => b !== a && factor(b, a) > 1));
  const first = unbeaten[0] ?? arrived[0] ?? order[0];
  const others = order.filter((number) => number !== first).sort(by((number) => factor(first, number)));
  const ties = (number) => ends(first, number).every((end) => end > 1 / (1 + tied) && end < 1 + tied);
  const few = !exact && times[0].length < fewest; // then a scheme that was never ahead needs no mention
  const least = (number) => (exact ? ratios : ends)(first, number)[0];
  const open = others.filter((number) => ties(number) || least(number) <= 1)
    .filter((number) => !few || number === others[0] || ratios(first, number)[0] <= 1);
  const second = open[0] ?? others[0];
  if (second === undefined) return { order, settled: true };
  return {
    order: [first, ...others], second, factor: factor(first, second), settled: !open.length,
    tie: open.length > 0 && open.every(ties),
  };
}
