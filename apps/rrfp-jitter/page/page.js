// A click on a run highlights it everywhere; another click ends that.
'use strict';
(() => {
  const tools = document.getElementById('tools');
  const buttons = [...tools.querySelectorAll('button')];
  let picked = null;
  const runOf = element => [...element.classList].find(c => /^r\d+$/.test(c));

  function pick(run) {
    picked = picked === run ? null : run;
    document.body.classList.toggle('picked', picked !== null);
    for (const e of document.querySelectorAll('.run.on')) e.classList.remove('on');
    if (picked !== null)
      for (const e of document.querySelectorAll('.run.' + picked)) e.classList.add('on');
    for (const b of buttons) b.classList.toggle('on', b.dataset.run === picked);
  }

  for (const b of buttons) b.addEventListener('click', () => pick(b.dataset.run));
  document.addEventListener('click', e => {
    const row = e.target.closest('.run');
    if (row && !String(getSelection())) pick(runOf(row));
  });
  tools.hidden = false;
})();
