// Takes jobs from an acknowledged list. REDIS_URL=… go run ./list orders
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

type Job struct{ Key, Lease string; Payload json.RawMessage }

func closeOrder(job Job) (err error) {
	_, err = fmt.Println("done", job.Key, string(job.Payload))
	return
}

func main() {
	options, _ := redis.ParseURL(os.Getenv("REDIS_URL"))
	db, ctx, list := redis.NewClient(options), context.Background(), os.Args[1]
	for {
		taken, err := db.BLPop(ctx, time.Second, list).Result()
		var job Job
		if err != nil || json.Unmarshal([]byte(taken[1]), &job) != nil {
			continue
		}
		if err := closeOrder(job); err != nil {
			log.Print(job.Key, err) // Not acknowledged, it comes again when its lease is over.
		} else {
			db.RPush(ctx, list+":done", job.Lease)
		}
	}
}
