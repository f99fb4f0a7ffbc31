/* Limits of groups that ledgers share: looks move shares between two ledgers, while these start and
 * end jobs. README.md says what is modelled.
 *
 * One script is one atomic step. A unit allows one start in a tick; so many may start at once as
 * there are units, and as many more in each tick. */

#ifndef UNITS
#define UNITS 1          /* of the rate of each group */
#endif
#ifndef LEASES
#define LEASES 1         /* of each group */
#endif
#ifndef GROUPS
#define GROUPS 1
#endif
#ifndef JOBS
#define JOBS 2           /* of each group in each ledger; ENDLESS for a backlog without end */
#endif
#ifndef LOOKERS
#define LOOKERS 1        /* who look at the same time */
#endif
#ifndef DEATHS
#define DEATHS 0         /* how often a look is cut off */
#endif
#ifndef LAPSES
#define LAPSES 0         /* how many leases lapse, and are taken over: another start, the same lease */
#endif
#ifndef EXPIRES
#define EXPIRES true     /* shares that nobody uses go */
#endif
#ifndef LEAVES
#define LEAVES 0         /* how often the second ledger is razed, as by a reshard, and begins anew */
#endif
#define ENDLESS 9

/* What breaks a step on purpose; see the file `checks`. */
#ifndef FORGETS_FIRST
#define FORGETS_FIRST false  /* a ledger forgets what it owes when it gives units up */
#endif
#ifndef NO_DEBT
#define NO_DEBT false        /* units come without what was used of them */
#endif
#ifndef RUNS_UNSEEN
#define RUNS_UNSEEN false    /* leases above a share are free */
#endif
#ifndef UNNUMBERED
#define UNNUMBERED false     /* ledgers obey older looks */
#endif
#ifndef ANY_LOOK
#define ANY_LOOK false       /* a ledger obeys looks that began before it did */
#endif
#ifndef UNNOTED
#define UNNOTED false        /* what a ledger has used that is gone counts no more */
#endif
#ifndef UNTOLD
#define UNTOLD false         /* a look does not see who waits without a share */
#endif
#ifndef TURNS
#define TURNS true           /* a ledger keeps the share that it has just got */
#endif
#ifndef SAME_FIRST
#define SAME_FIRST false     /* looks serve the groups in the same order each time */
#endif

/* What must not be; false for ever, and there for its name in what Spin reports. */
#ifndef too_many_start
bit too_many_start;
bit too_many_run;
#endif

#define LEDGERS 2
#define at(l, g) ((l) * GROUPS + (g))
#define each_group(g) g : 0 .. GROUPS - 1

typedef Part {
	byte units;
	byte leases;
	byte used;           /* starts of its units that are not free again yet */
	byte running;
	byte lapsed;         /* of the running ones */
	byte jobs;
	bit waits;           /* has said that it waits for a share */
	bit is_new           /* has got its share, and started nothing since */
}
Part part[LEDGERS * GROUPS];
byte spent[GROUPS];       /* all starts that are not free again yet, whoever made them */
byte runs[GROUPS];
byte left_for;           /* ticks in which what a razed ledger has used still counts */
byte newest;             /* the looker that began last */
byte seen[LEDGERS];      /* the newest looker of which a ledger knows; LOOKERS for none */
bit is_before[LOOKERS];  /* its look began before the second ledger did */
byte first;              /* the group that waits for a look for the longest time */
byte deaths, lapses, leaves;
byte has_started;        /* by part, a bit: for liveness */

#define owed(p) (p.used > p.units -> p.used - p.units : 0)
#define most(a, b) ((a) > (b) -> (a) : (b))
#define least(a, b) ((a) < (b) -> (a) : (b))
#define can_start(p) (p.used < p.units && p.running < p.leases)

inline starts(i) {
	assert(spent[(i) % GROUPS] < UNITS || too_many_start);
	spent[(i) % GROUPS]++;
	part[i].used++;
	part[i].is_new = false
}

proctype Workers(byte i) {
	do
	:: d_step { part[i].jobs > 0 && can_start(part[i]) ->
		starts(i);
		printf("ledger %d: starts a job of group %d\n", i / GROUPS, i % GROUPS);
		part[i].running++;
		runs[i % GROUPS]++;
		assert(runs[i % GROUPS] <= LEASES || too_many_run);
		part[i].waits = (part[i].waits && !can_start(part[i]));
		has_started = 1 << i;
		if
		:: part[i].jobs != ENDLESS -> part[i].jobs--
		:: else
		fi
	}
	:: d_step { (part[i].jobs > 0 && !can_start(part[i]) && !part[i].waits
			&& (part[i].units < UNITS || part[i].leases < LEASES)) ->
		part[i].waits = true
	}
	:: d_step { part[i].running > part[i].lapsed ->
		printf("ledger %d: a run ends\n", i / GROUPS);
		part[i].running--;
		runs[i % GROUPS]--
	}
	:: d_step { lapses < LAPSES && part[i].running > part[i].lapsed ->
		lapses++;
		part[i].lapsed++
	}
	:: d_step { part[i].lapsed > 0 && part[i].used < part[i].units ->
		starts(i);
		part[i].lapsed--
	}
	:: d_step { (part[i].lapsed > 0 && part[i].used >= part[i].units
			&& part[i].units < UNITS && !part[i].waits) ->
		part[i].waits = true
	}
	od
}

/* Units are free again after a tick. Those that are owed come one by one. */
proctype Clock() {
	byte i;
	do
	:: d_step {
		for (i : 0 .. LEDGERS * GROUPS - 1) {
			part[i].used = part[i].used - least(part[i].used, most(1, part[i].units))
		}
		for (each_group(i)) {
			spent[i] = spent[i] - least(spent[i], UNITS)
		}
		left_for = left_for - least(left_for, 1);
		printf("a tick\n");
		i = 0
	}
	od
}

/* A share that nobody uses goes. */
proctype Expiry(byte i) {
	do
	:: d_step { part[i].used == 0 && part[i].units + part[i].leases > 0 ->
		part[i].units = 0;
		part[i].leases = 0
	}
	od
}

/* The second ledger is razed when nothing runs, and begins anew. */
proctype Reshard() {
	byte g;
	do
	:: leaves < LEAVES ->
		leaves++;
		atomic {
			part[at(1, 0)].running == 0 && part[at(1, GROUPS - 1)].running == 0;
			for (each_group(g)) {
				part[at(1, g)].units = 0;
				part[at(1, g)].leases = 0;
				part[at(1, g)].used = 0;
				part[at(1, g)].waits = false
			}
			left_for = (UNNOTED -> 0 : 2);
			printf("ledger 1: is razed\n");
			seen[1] = LOOKERS;
			for (g : 0 .. LOOKERS - 1) {
				is_before[g] = true
			}
			g = 0
		}
	:: else -> break
	od
}

/* A ledger refuses a look if it knows a newer one, or has begun later. */
#define obeys(l) ((UNNUMBERED || seen[l] == me || newest == me || seen[l] == LOOKERS) \
	&& (ANY_LOOK || l == 0 || !is_before[me]))
#define waits_for(g) (part[at(0, g)].waits || part[at(1, g)].waits)

inline may_die() {
	if
	:: deaths < DEATHS -> deaths++; goto looks
	:: true
	fi
}

inline refused(l) {
	if
	:: !obeys(l) -> goto looks
	:: else -> seen[l] = me
	fi
}

/* Who should have how much of `all`: the ledger whose jobs wait, and equal parts if both wait; of
 * one, the ledger that has just got its share, else the other one than before. */
inline divides(all, has0, wants0, wants1) {
	if
	:: all < 2 && keeps < 2 -> wants0 = (keeps == 0 -> all : 0)
	:: else ->
		if
		:: wait[0] && wait[1] -> wants0 = all / 2
		:: wait[0] && !wait[1] -> wants0 = all - least(all - 1, busy[1])
		:: !wait[0] && wait[1] -> wants0 = least(all - 1, busy[0])
		:: !wait[0] && !wait[1] -> wants0 = has0
		fi
	fi;
	wants1 = all - wants0
}

proctype Looker(byte me) {
	byte l, g, free, owes, more, i;
	byte had_units[2], had_leases[2], bound[2], debt[2], wanted_units[2], wanted_leases[2];
	bit wait[2], is_new[2];
	byte busy[2], keeps;
looks:
	atomic {
		free = 0; owes = 0; more = 0; i = 0; l = 0; g = 0;
		had_units[0] = 0; had_units[1] = 0; had_leases[0] = 0; had_leases[1] = 0;
		bound[0] = 0; bound[1] = 0; debt[0] = 0; debt[1] = 0; busy[0] = 0; busy[1] = 0;
		wanted_units[0] = 0; wanted_units[1] = 0; wanted_leases[0] = 0; wanted_leases[1] = 0;
		wait[0] = false; wait[1] = false; is_new[0] = false; is_new[1] = false; keeps = 0;
		waits_for(0) || waits_for(GROUPS - 1);
		newest = me;
		is_before[me] = false;
		/* One group a look, as if it served no more. */
		if
		:: SAME_FIRST -> g = (waits_for(0) -> 0 : GROUPS - 1)
		:: !SAME_FIRST && waits_for(first) -> g = first
		:: !SAME_FIRST && !waits_for(first) -> g = GROUPS - 1 - first
		fi;
		first = GROUPS - 1 - g
	}
	for (l : 0 .. 1) {
		may_die();
		atomic {
			refused(l);
			i = at(l, g);
			had_units[l] = part[i].units;
			had_leases[l] = part[i].leases;
			busy[l] = most(part[i].running, least(part[i].used, part[i].units));
			wait[l] = ((part[i].jobs > 0 || part[i].lapsed > 0) && !can_start(part[i])
				&& (!UNTOLD || part[i].units > 0));
			is_new[l] = (part[i].is_new && part[i].jobs > 0 && TURNS)
		}
	}
	atomic {
		keeps = 2;
		if
		:: UNITS >= 2 && LEASES >= 2
		:: else ->
			if
			:: is_new[0] -> keeps = 0
			:: is_new[1] -> keeps = 1
			:: !is_new[0] && !is_new[1] && wait[0] && wait[1] ->
				keeps = (had_units[0] > 0 && had_leases[0] > 0 -> 1 : 0)
			:: !is_new[0] && !is_new[1] && wait[0] && !wait[1] -> keeps = 0
			:: !is_new[0] && !is_new[1] && !wait[0] && wait[1] -> keeps = 1
			:: else
			fi
		fi;
		divides(UNITS, had_units[0], wanted_units[0], wanted_units[1]);
		divides(LEASES, had_leases[0], wanted_leases[0], wanted_leases[1])
	}
	for (l : 0 .. 1) {
		may_die();
		atomic {
			refused(l);
			i = at(l, g);
			part[i].is_new = (part[i].is_new && part[i].units <= wanted_units[l]
				&& part[i].leases <= wanted_leases[l]);
			part[i].units = least(part[i].units, wanted_units[l]);
			part[i].leases = least(part[i].leases, wanted_leases[l]);
			printf("look %d: leaves ledger %d %d units and %d leases\n", me, l, part[i].units,
				part[i].leases);
			had_units[l] = part[i].units;
			had_leases[l] = part[i].leases;
			bound[l] = (RUNS_UNSEEN -> part[i].leases : most(part[i].leases, part[i].running));
			debt[l] = owed(part[i]);
			if
			:: FORGETS_FIRST -> part[i].used = least(part[i].used, part[i].units)
			:: else
			fi
		}
	}
	atomic {
		free = UNITS - least(UNITS, had_units[0] + had_units[1]);
		owes = (NO_DEBT -> 0 : debt[0] + debt[1] + (left_for > 0 -> free : 0))
	}
	for (l : 0 .. 1) {
		may_die();
		atomic {
			refused(l);
			i = at(l, g);
			more = least(free, wanted_units[l] - least(wanted_units[l], had_units[l]));
			if
			:: more > 0 && part[i].units < had_units[l] + more ->
				part[i].used = least(UNITS, part[i].used + (owes * more + free - 1) / free);
				owes = owes - least(owes, (owes * more + free - 1) / free);
				free = free - more;
				part[i].units = had_units[l] + more
			:: else
			fi;
			more = LEASES - least(LEASES, bound[0] + bound[1]);
			more = least(more, wanted_leases[l] - least(wanted_leases[l], bound[l]));
			part[i].leases = most(had_leases[l],
				least(wanted_leases[l], bound[l] + more));
			bound[l] = most(bound[l], part[i].leases);
			printf("look %d: ledger %d has %d units and %d leases\n", me, l, part[i].units,
				part[i].leases);
			part[i].is_new = (part[i].is_new || part[i].units > had_units[l]
				|| part[i].leases > had_leases[l]);
			part[i].waits = (part[i].waits && !can_start(part[i])
				&& (part[i].units < UNITS || part[i].leases < LEASES))
		}
	}
	for (l : 0 .. 1) {
		may_die();
		atomic {
			refused(l);
			i = at(l, g);
			if
			:: debt[l] > 0 && free == 0 -> part[i].used = least(part[i].used, part[i].units)
			:: else
			fi
		}
	}
	goto looks
}

#ifdef LIVENESS
#define starts_often(i) ([]<>(has_started & (1 << i)))
ltl all_start { starts_often(0) && starts_often(1) && starts_often(LEDGERS * GROUPS - 2)
	&& starts_often(LEDGERS * GROUPS - 1) }
#endif

init {
	byte i;
	atomic {
		seen[0] = LOOKERS;
		seen[1] = LOOKERS;
		for (i : 0 .. LEDGERS * GROUPS - 1) {
			part[i].jobs = JOBS;
			run Workers(i);
			if
			:: EXPIRES -> run Expiry(i)
			:: else
			fi
		}
		run Clock();
		for (i : 0 .. LOOKERS - 1) {
			run Looker(i)
		}
		if
		:: LEAVES > 0 -> run Reshard()
		:: else
		fi
	}
}
