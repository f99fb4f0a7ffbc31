"""What the library of the Standard Webhooks specification says to a call that was received.

Arguments: secret, file of the body, webhook-id, webhook-timestamp, webhook-signature.
"""

import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

secret, path, id, timestamp, signature = sys.argv[1:]
headers = {
    "webhook-id": id,
    "webhook-timestamp": timestamp,
    "webhook-signature": signature,
}
with open(path, "rb") as body:
    try:
        Webhook(secret).verify(body.read(), headers)
        print("genuine")
    except WebhookVerificationError as error:
        print(error)
