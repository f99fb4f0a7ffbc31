# Jobs of Sidekiq by `perform_in` and `at`, and one that is ready: ruby sidekiq.rb PORT
require 'sidekiq'

Sidekiq.configure_client { |config| config.redis = { url: "redis://127.0.0.1:#{ARGV[0]}/0" } }
due = Time.utc(2030, 1, 1, 9, 0, 0.25r).to_f
push = ->(id, name, args, at) do
  job = { 'class' => name, 'args' => args, 'jid' => id, 'queue' => 'mail' }
  Sidekiq::Client.push(at ? job.merge('at' => at) : job)
end
push.call('order-1', 'Welcome', [{ 'to' => 'a@example.org', 'amount' => 1.5 }], due)
push.call('order-2', 'Welcome', ['ä'], due + 60)
push.call('order-3', 'Remind', [1, 2], due + 120)
push.call('ready', 'Welcome', [], nil)
