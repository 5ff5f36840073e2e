// Draws the timelines and the memory of all runs on one time axis. Times are microseconds since the
// start of the run's window; `view` is the visible part, `origin` the time at which each run's axis
// begins.
'use strict';
(() => {
  let data;
  try {
    data = JSON.parse(document.getElementById('data').textContent);
  } catch (error) {
    const note = document.createElement('p');
    note.className = 'note';
    note.textContent = 'Timeline and memory cannot be drawn: the data of this page is damaged (' +
        error.message + '). Make the page again.';
    document.getElementById('tools').before(note);
    return;
  }
  const KIND = 0, MB = 1, CHUNK = 2, STEP = 3, BEGIN = 4, LENGTH = 5, DELAY = 6, DECIDED = 7,
        WHY = 8, SKIPPED = 9;
  // Space for the longest row name.
  const left = Math.max(96, 10 + 6.6 * Math.max(...data.runs.flatMap(r =>
      r.lanes.map(l => l.name.length))));
  const right = 12, axis = 20, between = 2, memoryRow = 34;
  const shortest = 0.02;
  const view = {from: 0, to: data.wall};
  const origin = data.runs.map(() => 0);
  const tip = document.getElementById('tip');
  const showPath = document.getElementById('show-path');
  const reasons = {
    hint_head: "the hint's first remaining task, and ready",
    skipped_not_ready: n => n + ' that the hint ranks before it were not ready',
    memory_bound: n => 'memory: of ' + n + ' that the hint ranks before it, a ready one had no slot',
    only_choice: 'nothing else was ready',
  };

  for (const run of data.runs) {
    run.onPath = new Map(run.path.map(([lane, task, why]) => [lane + '.' + task, why]));
    const n = run.lanes.length;
    run.height = n <= 8 ? 26 : n <= 16 ? 20 : n <= 48 ? 13 : 9;
  }
  const panels = [...document.querySelectorAll('svg.lanes')].map(svg => ({
    svg, run: data.runs[svg.dataset.run], number: +svg.dataset.run,
    memory: svg.classList.contains('memory'),
  }));
  const slotsMax = Math.max(1, ...data.runs.flatMap(r => r.held.map(s => s.slots)));
  const bytesMax = Math.max(1, ...data.runs.flatMap(r => r.held.map(s => s.bytes)));

  const round = v => Math.round(v * 10) / 10;
  const rect = (x, y, w, h) =>
      'M' + round(x) + ' ' + y + 'h' + round(w) + 'v' + h + 'h' + -round(w) + 'z';
  const escaped = t => t.replace(/[&<>"]/g, c => '&#' + c.charCodeAt(0) + ';');

  function duration(us) {
    const size = Math.abs(us);
    if (size >= 1e6) return (us / 1e6).toFixed(3) + ' s';
    if (size >= 1e3) return (us / 1e3).toFixed(size >= 1e5 ? 1 : 3) + ' ms';
    return us.toFixed(1) + ' µs';
  }
  const size = bytes => bytes >= 1 << 20 ? (bytes / (1 << 20)).toFixed(1) + ' MiB'
                                         : (bytes / 1024).toFixed(1) + ' KiB';
  // The traces of others do not say bytes.
  const sizeAfter = (text, bytes) => bytes > 0 ? `${text}, ${size(bytes)}` : text;

  // The first of the sorted items whose end lies behind `t`.
  function firstAfter(items, t, endOf) {
    let low = 0, high = items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (endOf(items[middle]) <= t) low = middle + 1; else high = middle;
    }
    return low;
  }
  const taskEnd = t => t[BEGIN] + t[LENGTH];
  const gapEnd = g => g[1] + g[2];
  const taskName = t => data.kinds[t[KIND]] + t[MB] + (t[CHUNK] ? '.' + t[CHUNK] : '');

  let paper = 0;  // its width while the page is printed, so that the text keeps its size
  function scaleOf(panel) {
    const width = paper || Math.max(panel.svg.clientWidth, 300);
    const from = view.from + origin[panel.number];
    const perMicrosecond = (width - left - right) / (view.to - view.from);
    return {width, from, to: from + view.to - view.from, perMicrosecond,
            x: t => left + (t - from) * perMicrosecond};
  }
  const laneTop = (run, i) => axis + i * (run.height + between) +
      (run.ranks > 1 ? Math.floor(i / run.ranks) * 3 : 0);
  const heightOf = panel => panel.memory ? axis + panel.run.held.length * memoryRow + 4
                                         : laneTop(panel.run, panel.run.lanes.length) + 4;

  function drawAxis(panel, s) {
    const wanted = (view.to - view.from) * (s.width < 600 ? 70 : 110) / (s.width - left - right);
    const power = 10 ** Math.floor(Math.log10(wanted));
    const tick = [1, 2, 5, 10].map(f => f * power).find(t => t >= wanted);
    const unit = tick >= 1e6 ? [1e6, 's'] : tick >= 1e3 ? [1e3, 'ms'] : [1, 'µs'];
    const digits = Math.max(0, Math.ceil(-Math.log10(tick / unit[0]) - 1e-9));
    const bottom = heightOf(panel);
    let out = '';
    for (let n = Math.ceil(view.from / tick); n * tick <= view.to; ++n) {
      const x = round(s.x(n * tick + origin[panel.number]));
      out += `<line class="rule" x1="${x}" x2="${x}" y1="${axis - 5}" y2="${bottom}"/>` +
          (x > s.width - 52 ? '' : `<text class="soft" x="${x + 3}" y="11">${(n * tick / unit[0]).toFixed(digits)} ${unit[1]}</text>`);
    }
    return out;
  }

  function drawSteps(panel, s) {
    const bottom = heightOf(panel);
    let out = '';
    for (const [step, begin] of panel.run.steps) {
      if (begin < s.from || begin > s.to || panel.run.steps.length < 2) continue;
      const x = round(s.x(begin));
      out += `<line class="step" x1="${x}" x2="${x}" y1="${axis - 6}" y2="${bottom}">` +
          `<title>step ${step}</title></line>`;
    }
    return out;
  }

  // One path per colour; of tasks thinner than half a pixel, one per half pixel is drawn.
  function drawLanes(panel, s) {
    const {run} = panel;
    const h = run.height;
    const gaps = data.causes.map(() => ''), tasks = data.kinds.map(() => '');
    let delays = '', labels = '', names = '', ground = '';
    const first = Math.max(s.x(0), left), last = Math.min(s.x(run.shown), s.width - right);
    run.lanes.forEach((lane, i) => {
      const y = laneTop(run, i);
      names += `<text x="0" y="${y + h / 2 + 4}" ${lane.first ? '' : 'class="soft"'} style="font-size:${
          Math.min(12, h + 2)}px">${escaped(lane.name)}</text>`;
      if (last > first) ground += rect(first, y, last - first, h);
      for (let n = firstAfter(lane.gaps, s.from, gapEnd); n < lane.gaps.length; ++n) {
        const g = lane.gaps[n];
        if (g[1] >= s.to) break;
        const x1 = Math.max(s.x(g[1]), left), x2 = Math.min(s.x(gapEnd(g)), s.width - right);
        if (x2 - x1 > 0.5) gaps[g[0]] += rect(x1, y, x2 - x1, h);
      }
      const drawn = data.kinds.map(() => -1);
      for (let n = firstAfter(lane.tasks, s.from, taskEnd); n < lane.tasks.length; ++n) {
        const t = lane.tasks[n];
        if (t[BEGIN] >= s.to) break;
        const x1 = Math.max(s.x(t[BEGIN]), left), x2 = Math.min(s.x(taskEnd(t)), s.width - right);
        let w = x2 - x1;
        if (w < 0.5 && x1 - drawn[t[KIND]] < 0.5) continue;
        drawn[t[KIND]] = x1;
        w = w > 4 ? w - 0.7 : Math.max(w, 0.5);
        tasks[t[KIND]] += rect(x1, y, w, h);
        const dx = Math.max(s.x(taskEnd(t) - t[DELAY]), left);
        if (x1 + w - dx > 1.5) delays += rect(dx, y, x1 + w - dx, h);
        const name = taskName(t);
        if (h >= 12 && w > 6 * name.length + 5)
          labels += `<text class="in" style="fill:var(--on-${data.kinds[t[KIND]]})" x="${round(x1 + w / 2)}" y="${y + h / 2 + 3.5}">${name}</text>`;
      }
    });
    const paths = (list, words) => list.map((d, k) => d &&
        `<path d="${d}" style="fill:var(--${words[k].replace(' ', '-')})"/>`).join('');
    return names + `<path d="${ground}" style="fill:var(--launch-gap)"/>` + paths(gaps, data.causes) + paths(tasks, data.kinds) +
        `<path d="${delays}" fill="url(#hatch)"/>` + labels;
  }

  function drawPath(panel, s) {
    if (!showPath.checked) return '';
    const {run} = panel;
    let marks = '', hops = '', before = null;
    for (const [i, n] of run.path) {
      const t = run.lanes[i].tasks[n];
      const y = laneTop(run, i);
      const x1 = s.x(t[BEGIN]), x2 = s.x(taskEnd(t));
      if (x2 >= left && x1 <= s.width - right) {
        const a = Math.max(x1, left), b = Math.min(x2, s.width - right);
        marks += rect(a, y + run.height - 3, Math.max(b - a, 0.6), 3);
      }
      if (before && before.i !== i && before.x >= left && x1 <= s.width - right && x1 >= left)
        hops += `M${round(before.x)} ${laneTop(run, before.i) + run.height - 1.5}L${round(x1)} ${
            y + run.height - 1.5}`;
      before = {i, x: x2};
    }
    return `<path class="hop" d="${hops}"/><path class="path" d="${marks}"/>`;
  }

  // The task that was chosen by keyboard or touch.
  let chosen = null;
  function drawChosen(panel, s) {
    if (!chosen || chosen.panel !== panel) return '';
    const t = panel.run.lanes[chosen.lane].tasks[chosen.task];
    const x1 = Math.max(s.x(t[BEGIN]), left), x2 = Math.min(s.x(taskEnd(t)), s.width - right);
    return x2 < x1 ? '' : `<path class="chosen" d="${
        rect(x1, laneTop(panel.run, chosen.lane), Math.max(x2 - x1, 1), panel.run.height)}"/>`;
  }

  function drawMemory(panel, s) {
    let out = '';
    panel.run.held.forEach((stage, i) => {
      const bottom = axis + (i + 1) * memoryRow - 2, h = memoryRow - 8;
      const edge = s.width - right;
      let area = '', line = '', last = 0;
      const n = Math.max(0, firstAfter(stage.series, s.from, p => p[0]) - 1);
      let x = left;
      for (let k = n; k < stage.series.length && stage.series[k][0] < s.to; ++k) {
        const [at, slots, bytes] = stage.series[k];
        const seen = Math.max(left, s.x(at));
        // Of several changes within a pixel, only the highest is drawn.
        const next = stage.series[k + 1];
        if (k > n && next && next[0] < s.to && seen - x < 0.7 && slots <= last) continue;
        x = seen;
        const a = round(bottom - h * slots / slotsMax), b = round(bottom - h * bytes / bytesMax);
        area += area ? `H${round(x)}V${a}` : `M${round(x)} ${bottom}V${a}`;
        line += line ? `H${round(x)}V${b}` : `M${round(x)} ${b}`;
        last = slots;
      }
      const end = round(Math.min(edge, s.x(panel.run.shown)));
      if (area && end >= round(x)) out += `<path class="slots" d="${area}H${end}V${bottom}z"/>` +
          `<path class="bytes" d="${line}H${end}"/>`;
      out += `<line class="rule" x1="${left}" x2="${edge}" y1="${bottom}" y2="${bottom}"/>` +
          `<text x="0" y="${bottom - 13}">${escaped(stage.name)}</text>` +
          `<text class="soft" x="0" y="${bottom - 1}" style="font-size:9.5px">${
              sizeAfter(`≤ ${stage.slots}`, stage.bytes)}</text>`;
    });
    return out;
  }

  function draw() {
    for (const panel of panels) {
      const s = scaleOf(panel);
      panel.svg.setAttribute('height', heightOf(panel));
      panel.svg.setAttribute('viewBox', `0 0 ${s.width} ${heightOf(panel)}`);
      panel.svg.innerHTML = drawAxis(panel, s) +
          (panel.memory ? drawMemory(panel, s) : drawLanes(panel, s)) + drawSteps(panel, s) +
          (panel.memory ? '' : drawPath(panel, s) + drawChosen(panel, s));
    }
    document.getElementById('range').textContent =
        duration(view.from) + ' to ' + duration(view.to) + '  (' + duration(view.to - view.from) + ')';
  }
  let asked = false;
  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  }

  function show(from, to) {
    const length = Math.min(Math.max(to - from, data.wall * 1e-6, shortest), data.wall * 1.02);
    const earliest = -Math.max(...origin) - data.wall * 0.01;
    view.from = Math.min(Math.max(from, earliest), data.wall * 1.01 - length);
    view.to = view.from + length;
    redraw();
  }
  function zoom(factor, around = (view.from + view.to) / 2) {
    show(around - (around - view.from) * factor, around + (view.to - around) * factor);
  }
  function pan(part) {
    const by = (view.to - view.from) * part;
    show(view.from + by, view.to + by);
  }
  function showStep(number) {
    const spans = data.runs.map(r => r.steps.find(s => s[0] === number));
    data.runs.forEach((r, i) => { origin[i] = spans[i] ? spans[i][1] : 0; });
    const length = Math.max(...spans.map(s => s ? s[2] - s[1] : 0));
    show(-length * 0.01, length * 1.01);
  }
  function showAll() {
    origin.fill(0);
    step.value = '';
    show(0, data.wall);
  }

  const timeAt = (panel, event) => {
    const s = scaleOf(panel);
    const box = panel.svg.getBoundingClientRect();
    return s.from + (event.clientX - box.left - left) / s.perMicrosecond;
  };
  const moment = (panel, t) => duration(t - origin[panel.number]);
  const linesOfTask = (panel, lane, i, n, t) => {
    const {run} = panel;
    const why = data.reasons[t[WHY]], said = reasons[why];
    const held = heldAt(run.held[lane.stage], taskEnd(t));
    const hop = run.onPath.get(i + '.' + n);
    return [
      `${taskName(t)} · ${lane.full} · step ${t[STEP]}`,
      `${moment(panel, t[BEGIN])} to ${moment(panel, taskEnd(t))}: ${duration(t[LENGTH])}`,
      t[DELAY] > 0 ? `injected delay: ${duration(t[DELAY])} of it, at the end` :
      t[DELAY] < 0 ? `injected speed-up: ${duration(-t[DELAY])} shorter than without jitter` :
                     'no injected delay',
      `decided at ${moment(panel, t[BEGIN] - t[DECIDED])}, begun ${duration(t[DECIDED])} later`,
      `reason: ${why} (${typeof said === 'function' ? said(t[SKIPPED]) : said})`,
      `held at its end: ${held[1]} slots, ${size(held[2])}`,
    ].concat(hop === undefined ? [] : ['on the critical path: ' + data.holds[hop]]);
  };
  const heldAt = (stage, t) => {
    const n = firstAfter(stage.series, t + 0.05, p => p[0]);
    return n ? stage.series[n - 1] : [0, 0, 0];
  };

  function linesAt(panel, event) {
    const {run} = panel;
    const t = timeAt(panel, event);
    const box = panel.svg.getBoundingClientRect();
    const y = event.clientY - box.top;
    if (event.clientX - box.left < left || t < 0 || t > run.shown) return null;
    if (panel.memory) {
      const stage = run.held[Math.floor((y - axis) / memoryRow)];
      if (!stage) return null;
      const held = heldAt(stage, t);
      return [
        stage.name, sizeAfter(`at ${moment(panel, t)}: ${held[1]} slots`, held[2]),
        sizeAfter(`peak: ${stage.slots} slots`, stage.bytes)
      ];
    }
    const i = run.lanes.findIndex((_, n) => y >= laneTop(run, n) && y < laneTop(run, n) + run.height);
    if (i < 0) return null;
    const lane = run.lanes[i];
    const n = firstAfter(lane.tasks, t, taskEnd);
    const task = lane.tasks[n];
    if (task && task[BEGIN] <= t) return linesOfTask(panel, lane, i, n, task);
    const gap = lane.gaps[firstAfter(lane.gaps, t, gapEnd)];
    if (!gap || gap[1] > t) return ['launch gap · ' + lane.full, data.meanings['launch gap']];
    const cause = data.causes[gap[0]];
    return [
      `${cause}${gap[3] ? ' for ' + gap[3] : ''} · ${lane.full}`,
      `${moment(panel, gap[1])} to ${moment(panel, gapEnd(gap))}: ${duration(gap[2])}`,
      data.meanings[cause]
    ].concat(gap[4] ? ['another task was ready, but in-order mode followed its sequence'] : []);
  }

  const hideTip = () => { tip.style.display = 'none'; };
  function showTip(panel, event, lines = linesAt(panel, event)) {
    tip.style.display = lines ? 'block' : 'none';
    if (!lines) return;
    const head = document.createElement('b');
    head.textContent = lines[0];
    tip.replaceChildren(head, lines.slice(1).join('\n'));
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + 'px';
    tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12
                                                                   : event.clientY + 18) + 'px';
  }

  // The reason of a task, without a pointer: the arrow keys go from task to task and from lane to lane.
  function choose(panel, lane, task) {
    const {run} = panel;
    chosen = {panel, lane, task};
    const t = run.lanes[lane].tasks[task], from = t[BEGIN] - origin[panel.number];
    if (from < view.from || from + t[LENGTH] > view.to) {
      const length = Math.max(view.to - view.from, t[LENGTH] * 1.2);
      show(from + t[LENGTH] / 2 - length / 2, from + t[LENGTH] / 2 + length / 2);
    }
    redraw();
    const s = scaleOf(panel), box = panel.svg.getBoundingClientRect();
    const place = {clientX: box.left + Math.max(left, Math.min(s.x(taskEnd(t)), s.width - right)),
                   clientY: box.top + laneTop(run, lane) + run.height};
    showTip(panel, place, linesOfTask(panel, run.lanes[lane], lane, task, t));
  }
  function firstVisible(panel, lane, t) {
    const {tasks} = panel.run.lanes[lane];
    return tasks.length ? Math.min(firstAfter(tasks, t, taskEnd), tasks.length - 1) : -1;
  }
  function goTo(panel, key) {
    const {run} = panel;
    const was = chosen && chosen.panel === panel ? chosen : null;
    const at = was ? run.lanes[was.lane].tasks[was.task][BEGIN] : view.from + origin[panel.number];
    let lane = was ? was.lane : 0, task = was ? was.task : firstVisible(panel, 0, at);
    const step = {ArrowUp: -1, ArrowDown: 1}[key];
    if (was && step) {
      do lane += step; while (run.lanes[lane] && !run.lanes[lane].tasks.length);
      if (run.lanes[lane]) task = firstVisible(panel, lane, at);
    } else if (was) {
      task += key === 'ArrowLeft' ? -1 : 1;
    }
    if (run.lanes[lane] && run.lanes[lane].tasks[task]) choose(panel, lane, task);
  }
  function leaveTask() {
    chosen = null;
    hideTip();
    redraw();
  }

  for (const panel of panels) {
    const {svg} = panel;
    let grip = null;
    if (!panel.memory) {
      svg.tabIndex = 0;
      svg.addEventListener('keydown', e => {
        if (e.key === 'Escape') leaveTask();
        if (!e.key.startsWith('Arrow') || e.ctrlKey || e.metaKey || e.altKey) return;
        e.preventDefault();
        goTo(panel, e.key);
      });
      svg.addEventListener('blur', leaveTask);
    }
    svg.addEventListener('pointerdown', e => {
      grip = {x: e.clientX, y: e.clientY, from: view.from, to: view.to};
      svg.setPointerCapture(e.pointerId);
      svg.classList.add('held');
    });
    svg.addEventListener('pointermove', e => {
      if (!grip) return showTip(panel, e);
      if (!isDragged(e)) return;
      hideTip();
      const by = (grip.x - e.clientX) / scaleOf(panel).perMicrosecond;
      show(grip.from + by, grip.to + by);
    });
    const isDragged = e => Math.hypot(e.clientX - grip.x, e.clientY - grip.y) > 4;
    const release = () => { grip = null; svg.classList.remove('held'); };
    svg.addEventListener('pointerup', e => {
      // A tap, where nothing can hover.
      if (grip && !isDragged(e)) showTip(panel, e);
      release();
    });
    svg.addEventListener('pointercancel', release);
    svg.addEventListener('pointerleave', e => { if (e.pointerType !== 'touch') hideTip(); });
    svg.addEventListener('dblclick', e => zoom(0.4, timeAt(panel, e) - origin[panel.number]));
    svg.addEventListener('wheel', e => {
      if (e.ctrlKey || e.metaKey || e.altKey) {
        e.preventDefault();
        zoom(Math.exp(e.deltaY * 0.002), timeAt(panel, e) - origin[panel.number]);
      } else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        e.preventDefault();
        pan((e.deltaX || e.deltaY) * 0.001);
      }
    }, {passive: false});
  }
  const actions = {
    in: () => zoom(0.5), out: () => zoom(2), all: showAll, earlier: () => pan(-0.25),
    later: () => pan(0.25),
  };
  for (const button of document.querySelectorAll('#tools button'))
    button.addEventListener('click', actions[button.dataset.do]);
  const step = document.getElementById('step');
  const showChosen = () => step.value === '' ? showAll() : showStep(+step.value);
  step.addEventListener('change', showChosen);
  showPath.addEventListener('change', redraw);
  const keys = {w: 'in', '+': 'in', s: 'out', '-': 'out', a: 'earlier', d: 'later', 0: 'all'};
  addEventListener('keydown', e => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.tagName === 'SELECT') return;
    if (keys[e.key]) actions[keys[e.key]]();
  });
  addEventListener('resize', redraw);
  for (const [event, width] of [['beforeprint', 703], ['afterprint', 0]])
    addEventListener(event, () => { paper = width; draw(); });
  addEventListener('pointerdown', e => { if (!e.target.closest('svg.lanes')) hideTip(); });
  showChosen();
  draw();
})();
