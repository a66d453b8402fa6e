// Everything that a person can do with a rule or one of its events, described before it happens.
import { ask, say } from './actions.svelte';
import { call, sentence } from './api';
import { ruleUrl, type Decision, type Rule, type Tested } from './rules';

const outcome = (one: Decision) => (one.run ? `Run ${one.run} was started.` : `No run was started: ${one.reason ?? one.status}.`);

export function pause(rule: Rule, after: () => unknown): void {
  ask({
    title: `Pause ${rule.name}?`,
    says: ['From now on its events start nothing.'],
    asks: 'Reason (optional)',
    rows: 1,
    button: 'Pause',
    danger: true,
    command: `sprag rule pause ${rule.name}`,
    act: async (text) => {
      await call('POST', ruleUrl(rule.name, 'pause'), { reason: text.trim() || null });
      await after();
      say(`${rule.name} is paused.`);
    },
  });
}

export function resume(rule: Rule, after: () => unknown): void {
  ask({
    title: `Resume ${rule.name}?`,
    says: rule.reason ? [`It is ${rule.status}: ${rule.reason}.`] : [],
    fields: [{ name: 'missed', label: 'Ticks of the pause', choices: ['start nothing', 'count as missed'] }],
    button: 'Resume',
    command: `sprag rule resume ${rule.name}`,
    act: async (_, fields) => {
      await call('POST', ruleUrl(rule.name, 'resume'), { missed: fields.missed === 'count as missed' });
      await after();
      say(`${rule.name} is active.`);
    },
  });
}

/** A rule with a schedule fires for the present moment; any other needs an event. */
function eventOf(text: string): unknown {
  if (!text.trim()) return undefined;
  try {
    return { body: JSON.parse(text) };
  } catch {
    throw new Error('The event must be JSON, such as {"ref": "refs/heads/main"}.');
  }
}
const EVENT = { name: 'event', label: 'Body of the event, as JSON', rows: 6 };

export function fire(rule: Rule, after: () => unknown): void {
  const scheduled = rule.kind === 'schedule';
  ask({
    title: `Fire ${rule.name} now?`,
    says: [scheduled ? 'Its next tick stays as it is. Its conditions decide whether a run starts.' : 'It gets this event, and its conditions decide whether a run starts.'],
    fields: scheduled ? [] : [EVENT],
    button: 'Fire',
    command: `sprag rule fire ${rule.name}`,
    act: async (_, fields) => {
      const { data } = await call<Decision>('POST', ruleUrl(rule.name, 'fire'), { event: eventOf(fields.event ?? '') });
      await after();
      say(outcome(data));
    },
  });
}

export function test(rule: Rule): void {
  const tell = (data: Tested) => {
    const inputs = data.inputs && Object.keys(data.inputs).length ? ` with ${JSON.stringify(data.inputs)}` : '';
    say(data.decision === 'start' ? `It would start a run${inputs}.` : `It would start nothing: ${data.reason ?? data.decision}.`);
  };
  if (rule.kind === 'schedule') {
    call<Tested>('POST', ruleUrl(rule.name, 'test'), {}).then(({ data }) => tell(data), (error) => say(sentence(error), true));
    return;
  }
  ask({
    title: `Test ${rule.name}`,
    says: ['Nothing is started and nothing is stored.'],
    fields: [EVENT],
    button: 'Test',
    command: `sprag rule test ${rule.name}`,
    act: async (_, fields) => tell((await call<Tested>('POST', ruleUrl(rule.name, 'test'), { event: eventOf(fields.event ?? '') })).data),
  });
}

export function backfill(rule: Rule, after: () => unknown): void {
  ask({
    title: `Give ${rule.name} ticks of the past?`,
    says: ['Each tick between the two times is decided, as if it had fired then.'],
    fields: [
      { name: 'from', label: 'First time, such as 2030-01-31T08:00:00Z', required: true },
      { name: 'to', label: 'Last time', required: true },
      { name: 'again', label: 'Ticks that it has taken before', choices: ['leave out', 'decide again'] },
    ],
    button: 'Backfill',
    command: `sprag rule backfill ${rule.name} --from … --to …`,
    act: async (_, fields) => {
      const body = { from: (fields.from ?? '').trim(), to: (fields.to ?? '').trim(), again: fields.again === 'decide again' };
      const { data } = await call<{ new: unknown[]; known: number }>('POST', ruleUrl(rule.name, 'backfill'), body);
      await after();
      say(`${data.new.length} tick${data.new.length === 1 ? '' : 's'} given${data.known ? `, ${data.known} were known` : ''}.`);
    },
  });
}

export function retire(rule: Rule, after: () => unknown): void {
  ask({
    title: `Remove ${rule.name}?`,
    says: ['It fires no more. Its decisions stay readable. Applying its file again brings it back.'],
    button: 'Remove',
    danger: true,
    command: `sprag rule rm ${rule.name}`,
    act: async () => {
      await call('DELETE', ruleUrl(rule.name));
      await after();
      say(`${rule.name} is retired.`);
    },
  });
}

export function apply(pipelines: string[], after: () => unknown): void {
  ask({
    title: 'Apply the rules of a pipeline',
    says: ['The rules of its `on:` become active as the file has them now. Rules that it no longer has are retired.'],
    fields: [
      { name: 'pipeline', label: 'Pipeline of the project', choices: pipelines },
      { name: 'dry', label: 'Do it', choices: ['only tell what would change', 'apply'] },
    ],
    button: 'Apply',
    command: 'sprag rule apply FILE',
    act: async (_, fields) => {
      const { data } = await call<{ dry: boolean; rules: { name: string; outcome: string }[] }>('POST', '/v1/rules', { pipeline: fields.pipeline, dry: fields.dry !== 'apply' });
      await after();
      const told = data.rules.map((rule) => `${rule.name}: ${rule.outcome}`).join(', ') || 'the pipeline has no rules';
      say(`${data.dry ? 'It would be ' : ''}${told}.`);
    },
  });
}

export function replay(one: { event: string; rule: string }, after: () => unknown): void {
  ask({
    title: `Give the event ${one.event} to ${one.rule} again?`,
    says: ['The rule decides as it is defined now.'],
    button: 'Replay',
    command: `sprag delivery replay ${one.event}`,
    act: async () => {
      const { data } = await call<Decision>('POST', `/v1/deliveries/${encodeURIComponent(one.event)}/replay`);
      await after();
      say(outcome(data));
    },
  });
}
