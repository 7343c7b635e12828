from openenv.core.generic_client import GenericEnvClient


class Wordle:
    """A word game for TRL's environment_factory. Serve it: prl-stage --stage envserver --env wordle --serve http://127.0.0.1:8000"""

    url = "http://127.0.0.1:8000"

    def __init__(self):
        self.client = GenericEnvClient(base_url=self.url).sync()

    def reset(self, **row):
        first = self.client.reset(split=row.get("split", "train"), index=row["index"], seed=row.get("seed", 0))
        self.done, self.reward = False, None
        return first.observation["prompt"]

    def guess(self, word: str) -> str:
        """
        Guess the secret word.

        Args:
            word: a five-letter English word

        Returns:
            What is known of the secret word.
        """
        if self.done:
            raise ValueError("The game is over.")
        step = self.client.step({"message": word})
        self.done, self.reward = step.done, step.reward
        return step.observation["prompt"] or "The game is over."

    def get_reward(self):
        if not self.done:  # the model stopped before the game did
            self.reward, self.done = self.client.step({"type": "finish"}).reward, True
        return self.reward
