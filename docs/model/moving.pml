/* Resharding, for one job: two ledgers between which it moves, callers who do not know yet where it
 * is, and everybody who moves it. README.md says what is modelled, and what is left out.
 *
 * One script is one atomic step, here as there. By the layout of epoch e the job belongs to the
 * ledger e % 2; so a second resharding takes it back to where it was, and what arrives late of the
 * first meets a ledger that looks the same. */

#ifndef CALLS
#define CALLS 2      /* how many calls each producer makes */
#endif
#ifndef PRODUCERS
#define PRODUCERS 1
#endif
#ifndef MOVERS
#define MOVERS 1     /* how many reshard, any of whom may stop for ever between any two steps */
#endif
#ifndef EPOCHS
#define EPOCHS 1     /* how often the kind is resharded */
#endif
#ifndef RUNS
#define RUNS 2       /* how many runs there are */
#endif

/* What breaks a step on purpose; see the file `checks`. */
#ifndef PUT_AGAIN
#define PUT_AGAIN false      /* put does not look whether the batch was taken in before */
#endif
#ifndef DROP_FIRST
#define DROP_FIRST false     /* a batch is dropped before it is put */
#endif
#ifndef DROP_ANY
#define DROP_ANY false       /* drop does not look which batch is kept aside */
#endif
#ifndef TAKE_BESIDE
#define TAKE_BESIDE false    /* take does not look whether a batch is kept aside */
#endif
#ifndef ANY_EPOCH
#define ANY_EPOCH false      /* a ledger answers who goes by another layout */
#endif
#ifndef CALL_AT_ONCE
#define CALL_AT_ONCE false   /* a call does not move the job first */
#endif
#ifndef OLD_CREATES
#define OLD_CREATES false    /* a schedule creates a job where none belongs any more */
#endif
#ifndef LEAVES_RUNNING
#define LEAVES_RUNNING false /* resharding does not wait for runs to end */
#endif

/* What must not be; each is false for ever, and there for its name in what Spin reports. */
#ifndef job_is_lost
bit job_is_lost;         /* a schedule was acknowledged, and the job is nowhere */
#endif
#ifndef two_of_a_name
bit two_of_a_name;       /* both ledgers have the job */
#endif
#ifndef ended_job_starts
bit ended_job_starts;    /* what was cancelled, replaced or done is run */
#endif
#ifndef job_is_left_behind
bit job_is_left_behind;  /* nothing moves any more, and the job is where nobody looks */
#endif

/* What is asked for with SHOW. */
#define nothing 0
#define helps_on 1       /* somebody delivers what another has taken out */
#define arrives_twice 2  /* a batch arrives a second time */
#define stale_call 3     /* a call is refused for its layout */
#define run_has_ended 4  /* a run ended between the question where the job is and the call */
#define waits_for_run 5  /* a run holds resharding up */
#define given_up 6       /* all who reshard have stopped half-way, and a call finds its job */
#ifndef SHOW
#define SHOW nothing
#endif
#define shown(what) assert(SHOW != what)

/* The age of a layout: twice its epoch, and one more when nothing moves any more. */
#define epoch_of(age) ((age) / 2)
#define is_moving(age) ((age) % 2 == 0)
#define place_of(age) (epoch_of(age) % 2)

#define NONE 0
typedef Ledger {
	byte age = 1;
	byte job;            /* which schedule it came from, or NONE */
	bool leased;
	bool marked;         /* its run was cancelled */
	byte next;           /* the successor */
	byte aside;          /* the job that was taken out, or NONE */
	byte batch;          /* the number of the last batch that was taken out */
	byte from;           /* and of the last one from the other ledger that was taken in */
};
Ledger ledger[2];
byte kinds = 1;          /* the age of the layout in the list of kinds */

/* What was promised. */
byte newest;             /* schedules are numbered */
byte owed;               /* the one that was acknowledged, and has not ended */
bool over[16];           /* those that must not start any more: cancelled, replaced, done */
byte resharding = MOVERS;

mtype = { ok, busy, stale, late, taken, runs_there, absent, elsewhere };

inline end_job(which) {
	over[which] = true;
	if
	:: owed == which -> owed = NONE
	:: else
	fi
}

/* lua/layout.lua: the newer one stays. */
inline set_layout(where, given) {
	if
	:: given > where ->
		where = given;
		printf("Redis: layout %d, moving %d\n", epoch_of(given), is_moving(given))
	:: else
	fi
}

/* lua/take.lua; `named` is whether the job is asked for, or only what is kept aside. */
inline take(at, by, named, late_batch, above) {
	atomic {
		batch = NONE;
		if
		:: epoch_of(ledger[at].age) != epoch_of(by) && !ANY_EPOCH -> reply = stale
		:: else ->
			reply = ok;
			word = absent;
			if
			:: ledger[at].aside != NONE && !TAKE_BESIDE ->
				reply = busy;
				if
				:: ledger[at].batch == late_batch -> ledger[at].batch = above + 1
				:: else
				fi;
				item = ledger[at].aside;
				batch = ledger[at].batch;
				printf("somebody %d: finds batch %d of ledger %d kept aside\n", _pid, batch, at)
			:: else ->
				if
				:: named && ledger[at].job != NONE && ledger[at].leased -> word = runs_there
				:: named && ledger[at].job != NONE && !ledger[at].leased ->
					word = taken;
					item = ledger[at].job;
					ledger[at].batch++;
					batch = ledger[at].batch;
					ledger[at].aside = item;
					ledger[at].job = NONE;
					printf("somebody %d: takes job %d out of ledger %d, batch %d\n",
						_pid, item, at, batch)
				:: else
				fi
			fi
		fi
	}
}

/* lua/put.lua */
inline put(at, by, given, number) {
	atomic {
		if
		:: epoch_of(ledger[at].age) != epoch_of(by) && !ANY_EPOCH -> reply = stale
		:: else ->
			if
			:: ledger[at].from == number && !PUT_AGAIN -> reply = ok; shown(arrives_twice)
			:: ledger[at].from > number && !PUT_AGAIN ->
				reply = late;
				above = ledger[at].from
			:: else ->
				reply = ok;
				ledger[at].from = number;
				printf("somebody %d: puts job %d into ledger %d, batch %d\n", _pid, given, at, number);
				if
				:: ledger[at].job != NONE -> end_job(given)
				:: else -> ledger[at].job = given
				fi
			fi
		fi
	}
}

/* lua/drop.lua */
inline drop(at, number) {
	atomic {
		if
		:: ledger[at].batch == number || DROP_ANY ->
			printf("somebody %d: drops batch %d of ledger %d\n", _pid, number, at);
			ledger[at].aside = NONE
		:: else
		fi
	}
}

/* `Ledger::move_out`: until the job is known to be out of its old ledger, or to run there. Leaves
 * the answer in `word`, or `stale` in `reply`. */
inline move_out(view, named) {
	do
	:: atomic {
			take(1 - place_of(view), view, named && answered == NONE, late_batch, above);
			if
			:: reply == ok && answered == NONE -> answered = word
			:: reply == busy -> shown(helps_on)
			:: else
			fi;
			if
			:: reply == stale || batch == NONE -> break
			:: else
			fi
		};
		if
		:: DROP_FIRST -> drop(1 - place_of(view), batch)
		:: else
		fi;
		atomic {
			put(place_of(view), view, item, batch);
			late_batch = (reply == late -> batch : NONE);
			if
			:: reply == stale -> break
			:: else
			fi
		};
		if
		:: reply == late
		:: else ->
			atomic {
				drop(1 - place_of(view), batch);
				if
				:: answered != NONE -> break
				:: else
				fi
			}
		fi
	od;
	atomic {
		word = answered;
		answered = NONE;
		batch = NONE;
		item = NONE;
		late_batch = NONE;
		above = NONE
	}
}

/* `Store::spread`: the list first. */
inline spread(given) {
	atomic { set_layout(kinds, given) };
	atomic { set_layout(ledger[0].age, given) };
	atomic { set_layout(ledger[1].age, given) }
}

/* `Store::agree`. */
inline agree(view) {
	atomic { view = (kinds > ledger[0].age -> kinds : ledger[0].age) };
	spread(view)
}

/* lua/schedule.lua and lua/cancel.lua; `old` is whether the job is to be elsewhere by now. */
inline call(at, by, old, schedules) {
	atomic {
		if
		:: epoch_of(ledger[at].age) != epoch_of(by) && !ANY_EPOCH -> reply = stale; shown(stale_call)
		:: old && !ledger[at].leased && !OLD_CREATES -> reply = elsewhere; shown(run_has_ended)
		:: else ->
			reply = ok;
			if
			:: schedules ->
				newest++;
				printf("somebody %d: schedules job %d in ledger %d\n", _pid, newest, at);
				if
				:: owed != NONE && !(ledger[at].leased && owed == ledger[at].job) -> end_job(owed)
				:: else
				fi;
				if
				:: ledger[at].leased ->
					/* What runs may end, and is not retried. */
					ledger[at].next = newest
				:: else -> ledger[at].job = newest
				fi;
				owed = newest
			:: else ->
				printf("somebody %d: cancels in ledger %d\n", _pid, at);
				if
				:: ledger[at].leased -> ledger[at].marked = true; ledger[at].next = NONE
				:: else -> ledger[at].job = NONE
				fi;
				if
				:: owed != NONE -> end_job(owed)
				:: else
				fi
			fi
		fi
	}
}

#define LOCALS mtype reply; mtype word; byte answered; byte batch; byte item; \
	byte late_batch; byte above

proctype Producer() {
	LOCALS;
	byte view = 1;
	byte calls;
	bool schedules;
	bool old;
	do
	:: calls == CALLS -> break
	:: atomic {
			calls < CALLS -> calls++;
			if
			:: schedules = true
			:: schedules = false
			fi
		};
again:		if
		:: is_moving(view) && !CALL_AT_ONCE -> move_out(view, true)
		:: else -> atomic { reply = ok; word = absent }
		fi;
		if
		:: reply == stale -> agree(view); goto again
		:: else
		fi;
		atomic {
			old = word == runs_there;
			call((old -> 1 - place_of(view) : place_of(view)), view, old, schedules);
			old = false;
			word = absent;
			if
			:: reply == ok && is_moving(view) && resharding == 0 -> shown(given_up)
			:: else
			fi;
			if
			:: reply == elsewhere -> goto again
			:: else
			fi
		};
		if
		:: reply == stale -> agree(view); goto again
		:: else
		fi
	od
}

/* Claims what is pending wherever it is, and ends its run: done, or to be tried again. */
proctype Worker() {
	byte runs;
	byte at;
end_idle:
	do
	:: runs == RUNS -> break
	:: atomic {
			runs < RUNS && (ledger[0].job != NONE || ledger[1].job != NONE);
			if
			:: ledger[0].job != NONE -> at = 0
			:: ledger[1].job != NONE -> at = 1
			fi;
			runs++;
			ledger[at].leased = true;
			ledger[at].marked = false;
			printf("worker 0: starts job %d of ledger %d\n", ledger[at].job, at);
			/* Once its cancel, its successor or its end was acknowledged, it must not start. */
			assert(!over[ledger[at].job] || ended_job_starts)
		};
		atomic {
			ledger[at].leased = false;
			if
			:: ledger[at].next != NONE ->
				over[ledger[at].job] = true;
				ledger[at].job = ledger[at].next;
				ledger[at].next = NONE
			:: ledger[at].next == NONE ->
				end_job(ledger[at].job);
				ledger[at].job = NONE
			:: ledger[at].next == NONE && !ledger[at].marked -> skip
			fi
		}
	od
}

/* `keyfall reshard`, which may stop for ever between any two steps. */
proctype Mover() {
	LOCALS;
	byte view = 1;
	byte rounds;
	do
	:: rounds == EPOCHS -> break
	:: break
	:: rounds < EPOCHS ->
		rounds++;
		agree(view);
		atomic {
			if
			:: !is_moving(view) && kinds == view -> view++; kinds = view
			:: !is_moving(view) && kinds != view -> view = kinds
			:: is_moving(view)
			fi
		};
		if
		:: !is_moving(view) -> goto next
		:: else
		fi;
		spread(view);
		do
		:: move_out(view, false);
			if
			:: reply == stale -> goto next
			:: else
			fi;
			move_out(view, true);
			if
			:: reply == stale -> goto next
			:: word == taken
			:: word == runs_there && !LEAVES_RUNNING -> shown(waits_for_run)
			:: word == runs_there && LEAVES_RUNNING -> break
			:: word == absent -> break
			fi
		:: goto gone
		od;
		word = absent;
		spread(view + 1);
next:		skip
	od;
gone:	resharding--
}

/* Somebody who took out a batch and then says nothing for a while: whatever comes of it comes late,
 * at any time, in order. A script that is repeated is one of these as well. */
proctype Latecomer() {
	LOCALS;
	byte view;
end_idle:
	atomic { is_moving(kinds); view = kinds };
	take(1 - place_of(view), view, true, NONE, NONE);
	if
	:: batch == NONE
	:: batch != NONE ->
		put(place_of(view), view, item, batch);
		if
		:: reply == ok -> drop(1 - place_of(view), batch)
		:: else
		fi
	fi
}

#define has(at, which) \
	(ledger[at].job == which || ledger[at].next == which || ledger[at].aside == which)
#define is_empty(at) (ledger[at].job == NONE && ledger[at].aside == NONE)

/* What holds at every moment. */
active proctype Watch() {
end:	do
	:: d_step {
			assert(owed == NONE || has(0, owed) || has(1, owed) || job_is_lost);
			assert(ledger[0].job == NONE || ledger[1].job == NONE || two_of_a_name);
			assert(ledger[0].age != ledger[1].age || is_moving(ledger[0].age) ||
				is_empty(1 - place_of(ledger[0].age)) || job_is_left_behind)
		} -> break
	od
}

init {
	atomic {
		byte i;
		newest = 1;
		owed = 1;
		ledger[0].job = 1;
		for (i : 1 .. PRODUCERS) { run Producer() }
		for (i : 1 .. MOVERS) { run Mover() }
		run Worker();
#ifdef LATECOMER
		run Latecomer();
#endif
	}
}
