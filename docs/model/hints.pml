/* Triggers, events, wake-ups and pacers: what makes a job punctual. Nothing here may decide
 * whether it runs. The first worker is the first in rank, the second stands in. */

#ifdef HINTS

bit has_trigger;
unsigned trigger_left : 2;      /* ticks until it expires */

typedef Track {
	bit is_to_read;             /* a job is due sooner than all before; or one was touched */
	bit is_touched;             /* the job was, since it was last given a due time */
	bit knows;                  /* when the next job is due */
	unsigned due_in : 2;
	bit looks_after;            /* a job that was touched or announced: is it still due? */
};
Track track[PACERS];

/* Redis says that a key has expired: whenever it meets one that is past its time, be it to
 * read, to overwrite or to delete it. */
inline expire() {
	if
	:: has_trigger && trigger_left == 0 ->
		printf("  Redis: the trigger expires\n");
		has_trigger = false;
		work[0].has_heard = true
	:: else
	fi
}

/* lib/trigger.lua */
inline arm(in_) {
	expire();
	has_trigger = (in_ > 0);
	trigger_left = in_;
	for (n : 0 .. PACERS - 1) {
		track[n].is_touched = false
	}
}

inline disarm() {
	expire();
	has_trigger = false;
	trigger_left = 0
}

/* `now` to all, or `due` to the pacers if it is sooner than what they have heard of. That lib/
 * trigger.lua also says so of what is due within milliseconds is not counted on. */
inline wake(in_) {
	for (n : 0 .. PACERS - 1) {
		if
		:: in_ == 0 ->
			work[0].has_heard = true;
			track[n].looks_after = true
		:: in_ > 0 && (!was.is_due || was.due_in == 0 || in_ < was.due_in) ->
			track[n].is_to_read = true
		:: else
		fi
	}
}

/* Touching and reading are two steps: of many jobs that are touched one after the other, only
 * some are touched and read in one go. */
proctype Pacer(byte p) {
end:	do
	:: d_step { track[p].is_to_read ->
			track[p].is_to_read = false;
			/* Due already, as the read comes late: touched at once. */
			track[p].knows = (redis.is_due && !track[p].is_touched);
			track[p].due_in = (track[p].knows -> redis.due_in : 0)
		}
	:: d_step { track[p].knows && track[p].due_in == 0 ->
			if
			:: PACERS > 1 && track[1 - p].looks_after -> shows(both_have_touched)
			:: else
			fi;
			expire();
			track[p].is_touched = (redis.is_due && redis.due_in == 0);
			track[p].knows = false;
#ifndef BROKEN_PACER_READS_ONCE
			track[p].is_to_read = true;
#endif
			track[p].looks_after = true
		}
	:: d_step { track[p].looks_after ->
			track[p].looks_after = false;
#ifndef BROKEN_PACER_LOOKS_AFTER_NOTHING
			if
			:: redis.is_due && redis.due_in == 0 -> work[WORKERS - 1].has_heard = true
			:: else
			fi
#endif
		}
#ifdef LOSSY
	:: d_step { track[p].is_to_read -> track[p].is_to_read = false }
	:: d_step { track[p].looks_after -> track[p].looks_after = false }
#endif
	od
}

/* Redis meets the trigger by itself; or the trigger is evicted, and what was said is not heard. */
proctype Luck() {
end:	do
#ifdef SAMPLING
	:: d_step { has_trigger && trigger_left == 0 -> expire() }
#endif
#ifdef LOSSY
	:: d_step { has_trigger -> has_trigger = false; trigger_left = 0 }
	:: d_step { work[0].has_heard -> work[0].has_heard = false }
	:: d_step { work[WORKERS - 1].has_heard -> work[WORKERS - 1].has_heard = false }
#endif
	:: false
	od
}

#define hints_wait (has_trigger && trigger_left > 0)

inline tick_hints() {
	for (n : 0 .. PACERS - 1) {
		track[n].due_in = track[n].due_in - (track[n].due_in > 0)
	}
	trigger_left = trigger_left - (trigger_left > 0)
}

#else

#define arm(in) skip
#define disarm() skip
#define wake(in) skip
#define hints_wait false
#define tick_hints() skip

#endif
