(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const slider = document.getElementById("step"), label = document.getElementById("at");
  const tip = document.getElementById("tip");

  function addTokens(parent, texts, classOf) {
    const all = document.createDocumentFragment();
    const spans = texts.map((text, index) => {
      const span = document.createElement("span");
      span.textContent = text;
      span.className = classOf(index);
      if (text === "") span.classList.add("part");
      if (text.includes("\n")) span.classList.add("nl");
      all.append(span);
      return span;
    });
    parent.append(all);
    return spans;
  }

  // One generation. `setStep` touches only the tokens whose look changes.
  function makeMap(map, number) {
    const article = document.getElementById("m" + number);
    const answer = article.querySelector(".answer"), text = article.querySelector(".text");
    const canvas = article.querySelector("canvas"), boxes = [...article.querySelectorAll("[type=checkbox]")];
    const counts = [...article.querySelectorAll("td.now")];
    const prompt = data.prompt.length, steps = map.num_tokens.length, last = boxes.length - 1;
    const spans = addTokens(text, data.prompt, (index) => "d" + map.depths[index]);
    spans.push(...addTokens(answer, map.answer, () => ""));
    const numbers = new Map(spans.map((span, index) => [span, index]));
    const revived = map.revived;
    const revivals = new Map();
    revived.forEach((stages, step) => stages.forEach((positions, stage) => positions.forEach((position) => {
      if (!revivals.has(position)) revivals.set(position, []);
      revivals.get(position).push([step, stage]);
    })));
    const depths = [...article.querySelectorAll("tbody tr")].map((row) => row.querySelector("i"));
    const layers = [...article.querySelectorAll("tbody th")].map((head) => head.textContent);
    const line = parseFloat(getComputedStyle(answer).lineHeight);
    let step = 0, shown = [], chosen = null;

    // Of the ticked stages, the deepest after which each token is revived in this step.
    function framed() {
      const deepest = new Map();
      (revived[step] || []).forEach((all, stage) => {
        if (boxes[stage].checked) all.forEach((position) => deepest.set(position, stage));
      });
      return deepest;
    }

    function setStep(next) {
      step = next;
      for (const span of shown) span.classList.remove("go", "stay");
      const deepest = framed();
      shown = [];
      for (const [position, stage] of deepest) {
        const reaches = Math.max(...revivals.get(position).filter((one) => one[0] === step).map((one) => one[1]));
        spans[position].classList.add(reaches === last ? "go" : "stay");
        shown.push(spans[position]);
      }
      counts.forEach((cell, stage) => {
        cell.textContent = step < steps ? revived[step][stage].length.toLocaleString("en") : "-";
      });
      if (chosen) chosen.classList.remove("chosen");
      chosen = step < parts ? null : spans[map.num_tokens[step]] || null;
      if (chosen) {
        chosen.classList.add("chosen");
        if (chosen.parentNode === answer) answer.scrollTop = (Math.floor(chosen.offsetTop / line) - 1) * line;
      }
      drawTicks(deepest);
    }

    // The strip, in the screen's pixels: above the prompt's depths, the mean where a pixel holds several tokens; below
    // the tokens revived in this step.
    const brush = canvas.getContext("2d");
    let pixel = 1, frame = "";
    function draw() {
      pixel = window.devicePixelRatio || 1;
      canvas.width = Math.round(canvas.clientWidth * pixel);
      canvas.height = Math.round(22 * pixel);
      frame = getComputedStyle(canvas).color;
      const colours = depths.map((swatch) => getComputedStyle(swatch).backgroundColor.match(/\d+/g).map(Number));
      for (let x = 0; x < canvas.width; x++) {
        const from = Math.floor(x * prompt / canvas.width);
        const here = map.depths.slice(from, Math.max(from + 1, Math.floor((x + 1) * prompt / canvas.width)));
        const mean = [0, 1, 2].map((part) => here.reduce((sum, depth) => sum + colours[depth][part], 0) / here.length);
        brush.fillStyle = `rgb(${mean.map(Math.round).join(",")})`;
        brush.fillRect(x, 0, 1, 12 * pixel);
      }
      drawTicks(framed());
    }
    function drawTicks(deepest) {
      brush.clearRect(0, 12 * pixel, canvas.width, 10 * pixel);
      brush.fillStyle = frame;
      for (const position of deepest.keys()) {
        brush.fillRect((position + .5) * canvas.width / prompt - pixel, 13 * pixel, 2 * pixel, 9 * pixel);
      }
    }

    const word = (step) => step < parts || !spans[map.num_tokens[step]] ? "" : `, "${spans[map.num_tokens[step]].textContent}"`;
    const end = (depth) => layers[depth].split("\u2013").pop();
    function describe(span) {
      const index = numbers.get(span);
      if (index === undefined) return null;
      const lines = [`token ${index.toLocaleString("en")}${span.textContent === "" ? ", part of a character" : ""}`];
      if (index < prompt) lines.push(`prefilling ended in layer ${end(map.depths[index])} of ${end(layers.length - 1)}`);
      for (const [when, stage] of revivals.get(index) || []) {
        lines.push(`revived in layers ${layers[stage + 1]} for ${nameOf(when)}${word(when)}`);
      }
      return lines.join("\n");
    }

    new ResizeObserver(draw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    for (const box of boxes) box.addEventListener("change", () => setStep(step));
    canvas.addEventListener("click", (event) => {
      const index = Math.floor(event.offsetX / canvas.clientWidth * prompt);
      spans[Math.max(0, Math.min(prompt - 1, index))].scrollIntoView({block: "center"});
    });
    answer.addEventListener("click", (event) => {
      const index = map.num_tokens.indexOf(numbers.get(event.target));
      if (index >= 0) go(index);
    });
    return {setStep, describe, article};
  }

  // Steps that end within the prompt, given in several chunks, generate nothing of the answer.
  const parts = data.maps[0].num_tokens.filter((total) => total < data.prompt.length).length;
  const nameOf = (step) => step < parts ? `pass ${step + 1} over the prompt` : `generated token ${step - parts + 1}`;
  const maps = data.maps.map(makeMap);

  function go(step) {
    slider.value = step;
    step = Number(slider.value);
    const name = nameOf(step);
    label.textContent = name[0].toUpperCase() + name.slice(1) + (step < parts ? "" : ` of ${slider.max - parts + 1}`);
    slider.setAttribute("aria-valuetext", label.textContent);
    for (const map of maps) map.setStep(step);
  }

  function show(event) {
    const article = event.target.closest("article");
    const text = article && maps.find((map) => map.article === article).describe(event.target);
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const at = event.target.getClientRects()[0], room = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(at.left, innerWidth - room.width - 4)) + "px";
    tip.style.top = (at.bottom + room.height + 8 < innerHeight ? at.bottom + 6 : at.top - room.height - 6) + "px";
  }

  slider.addEventListener("input", () => go(slider.value));
  document.getElementById("back").addEventListener("click", () => go(Number(slider.value) - 1));
  document.getElementById("on").addEventListener("click", () => go(Number(slider.value) + 1));
  document.addEventListener("keydown", (event) => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey || event.target === slider) return;
    event.preventDefault();
    go(Number(slider.value) + by);
  });
  document.addEventListener("pointerover", show);
  document.addEventListener("click", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, {passive: true});
  go(slider.value);
})();
