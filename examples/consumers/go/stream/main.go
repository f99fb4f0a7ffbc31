// Takes jobs from an acknowledged stream. REDIS_URL=… go run ./stream orders closers me
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

func closeOrder(job map[string]any) error {
	_, err := fmt.Println("done", job["key"], job["payload"])
	return err
}

func main() {
	options, _ := redis.ParseURL(os.Getenv("REDIS_URL"))
	db, ctx := redis.NewClient(options), context.Background()
	stream, group, me := os.Args[1], os.Args[2], os.Args[3]
	for {
		read, _ := db.XReadGroup(ctx, &redis.XReadGroupArgs{Group: group, Consumer: me,
			Streams: []string{stream, ">"}, Count: 10, Block: time.Second}).Result()
		for _, of := range read {
			for _, entry := range of.Messages {
				if err := closeOrder(entry.Values); err != nil {
					log.Print(entry.ID, err) // Not acknowledged, it comes again.
					continue
				}
				db.XAck(ctx, stream, group, entry.ID)
			}
		}
	}
}
